// Defines JAXCCOMP_LOSSLESS_KERNELS out of the functions that its includer has defined under the
// names of the table's members. Included inside namespace jaxccomp::lossless.

extern const Kernels JAXCCOMP_LOSSLESS_KERNELS;
constinit const Kernels JAXCCOMP_LOSSLESS_KERNELS = {
    .name = JAXCCOMP_LOSSLESS_NAME,
    .split = {&Split<Layout::kBytes1>, &Split<Layout::kBytes2>, &Split<Layout::kBytes4>,
              &Split<Layout::kBytes8>, &Split<Layout::kBFloat16>, &Split<Layout::kFloat16>,
              &Split<Layout::kFloat32>, &Split<Layout::kFloat64>},
    .merge = {&Merge<Layout::kBytes1>, &Merge<Layout::kBytes2>, &Merge<Layout::kBytes4>,
              &Merge<Layout::kBytes8>, &Merge<Layout::kBFloat16>, &Merge<Layout::kFloat16>,
              &Merge<Layout::kFloat32>, &Merge<Layout::kFloat64>},
    .encode_level = {nullptr, &EncodeLevel<1>, &EncodeLevel<2>},
    .decode_level = {nullptr, &DecodeLevel<1>, &DecodeLevel<2>},
    .pack = &Pack,
    .unpack = &Unpack,
};
