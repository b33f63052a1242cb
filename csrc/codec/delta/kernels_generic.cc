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
    .steps2 = Steps<BFloat16Word>,
    .steps4 = Steps<Float32Word>,
    .advance2 = Advance<BFloat16Word>,
    .advance4 = Advance<Float32Word>,
    .sums = SumsOf,
    .count = CountOf,
    .symbols = SymbolsOf,
    .above = AboveOf,
    .keep = KeepOf,
    .climb = ClimbOf,
    .split = SplitOf,
    .join = JoinOf,
    .put_low = PutLowOf,
    .take_low = TakeLowOf,
    .encode_few = EncodeLanes<kFewLanes>,
    .encode_max = EncodeLanes<kMaxLanes>,
    .decode_few = DecodeLanes<kFewLanes>,
    .decode_max = DecodeLanes<kMaxLanes>};

}  // namespace jaxccomp::delta
