// Kernels for every processor of the architecture: compiled with its baseline flags.
#include "codec/delta/generic.inl"

namespace jaxccomp::delta {

extern const Kernels kGenericKernels;
const Kernels kGenericKernels = {
    .name = "generic",
    .map2 = MapOf<uint16_t>,
    .map4 = MapOf<uint32_t>,
    .bfloat16_classes = ClassesOf<BFloat16Word>,
    .float16_classes = ClassesOf<Float16Word>,
    .float32_classes = ClassesOf<Float32Word>,
    .sums = SumsOf,
    .encode_lanes = EncodeLanes,
    .decode_lanes = DecodeLanes};

}  // namespace jaxccomp::delta
