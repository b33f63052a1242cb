// Defines JAXCCOMP_KERNELS from the includer's functions, which are named like the table's members; with the
// fused ones if JAXCCOMP_LOSSLESS_FUSED. Included inside namespace jaxccomp::lossless.

extern const Kernels JAXCCOMP_KERNELS;
constinit const Kernels JAXCCOMP_KERNELS = {
    .name = JAXCCOMP_KERNELS_NAME,
    .split = {&Split<Layout::kBytes1>, &Split<Layout::kBytes2>, &Split<Layout::kBytes4>,
              &Split<Layout::kBytes8>, &Split<Layout::kBFloat16>, &Split<Layout::kFloat16>,
              &Split<Layout::kFloat32>, &Split<Layout::kFloat64>},
    .merge = {&Merge<Layout::kBytes1>, &Merge<Layout::kBytes2>, &Merge<Layout::kBytes4>,
              &Merge<Layout::kBytes8>, &Merge<Layout::kBFloat16>, &Merge<Layout::kFloat16>,
              &Merge<Layout::kFloat32>, &Merge<Layout::kFloat64>},
    .encode_level = {nullptr, &EncodeLevel<1>, &EncodeLevel<2>},
    .decode_level = {nullptr, &DecodeLevel<1>, &DecodeLevel<2>},
#if defined(JAXCCOMP_LOSSLESS_FUSED)
    .split_encode = {&SplitEncode<Layout::kBytes1>, &SplitEncode<Layout::kBytes2>,
                     &SplitEncode<Layout::kBytes4>, &SplitEncode<Layout::kBytes8>,
                     &SplitEncode<Layout::kBFloat16>, &SplitEncode<Layout::kFloat16>,
                     &SplitEncode<Layout::kFloat32>, &SplitEncode<Layout::kFloat64>},
    .decode_merge = {&DecodeMerge<Layout::kBytes1>, &DecodeMerge<Layout::kBytes2>,
                     &DecodeMerge<Layout::kBytes4>, &DecodeMerge<Layout::kBytes8>,
                     &DecodeMerge<Layout::kBFloat16>, &DecodeMerge<Layout::kFloat16>,
                     &DecodeMerge<Layout::kFloat32>, &DecodeMerge<Layout::kFloat64>},
#else
    .split_encode = {},
    .decode_merge = {},
#endif
    .histogram = &Histogram,
    .pack = &Pack,
    .unpack = &Unpack,
};
