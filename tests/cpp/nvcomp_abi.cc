// Compiles only if csrc/codec/nvcomp/abi.h agrees with nvCOMP's headers. Only tests/unit/test_nvcomp.py compiles it,
// with the headers that it finds.
#include <nvcomp.h>

#include <cstddef>
#include <type_traits>

#include "codec/nvcomp/abi.h"

namespace jaxccomp::nvcomp {

#define SAME(ours, our_member, theirs, their_member)                            \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(ours::our_member) == sizeof(theirs::their_member))
#define SAME_SIZE(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(theirs) <= alignof(Options))

static_assert(kMajorVersion == NVCOMP_VER_MAJOR);
static_assert(kSuccess == nvcompSuccess && sizeof(Outcome) == sizeof(nvcompStatus_t));
static_assert(sizeof(Type) == sizeof(nvcompType_t));
static_assert(static_cast<int>(Type::kBytes) == NVCOMP_TYPE_UCHAR);
static_assert(static_cast<int>(Type::kUInt16) == NVCOMP_TYPE_USHORT);
static_assert(static_cast<int>(Type::kUInt32) == NVCOMP_TYPE_UINT);
static_assert(static_cast<int>(Type::kFloat16) == NVCOMP_TYPE_FLOAT16);
static_assert(static_cast<int>(Type::kFloat32) == NVCOMP_TYPE_FLOAT32);
static_assert(kDecodeByKernels == NVCOMP_DECOMPRESS_BACKEND_CUDA);

using TheirAnsEncode = nvcompBatchedANSCompressOpts_t;
SAME_SIZE(AnsEncodeOptions, TheirAnsEncode);
SAME(AnsEncodeOptions, variant, TheirAnsEncode, type);
SAME(AnsEncodeOptions, type, TheirAnsEncode, data_type);
SAME(AnsEncodeOptions, sub_chunks, TheirAnsEncode, max_sub_chunk_count);
SAME(AnsEncodeOptions, states, TheirAnsEncode, states_per_lane);
SAME(AnsEncodeOptions, histogram_reduction, TheirAnsEncode, histogram_reduction_log2);
static_assert(AnsEncodeOptions{}.variant == nvcomp_rANS);

using TheirAnsDecode = nvcompBatchedANSDecompressOpts_t;
SAME_SIZE(AnsDecodeOptions, TheirAnsDecode);
SAME(AnsDecodeOptions, backend, TheirAnsDecode, backend);
SAME(AnsDecodeOptions, type, TheirAnsDecode, data_type);
SAME(AnsDecodeOptions, sub_chunks, TheirAnsDecode, max_sub_chunk_count);
SAME(AnsDecodeOptions, states, TheirAnsDecode, states_per_lane);
SAME(AnsDecodeOptions, skip_validation, TheirAnsDecode, skip_validate);

using TheirLz4Encode = nvcompBatchedLZ4CompressOpts_t;
SAME_SIZE(Lz4EncodeOptions, TheirLz4Encode);
SAME(Lz4EncodeOptions, type, TheirLz4Encode, data_type);
SAME(Lz4EncodeOptions, bit_shuffle, TheirLz4Encode, bitshuffle_mode);
static_assert(NVCOMP_BITSHUFFLE_NONE == 0 && NVCOMP_BITSHUFFLE_MSB_FIRST == 1);

using TheirLz4Decode = nvcompBatchedLZ4DecompressOpts_t;
SAME_SIZE(Lz4DecodeOptions, TheirLz4Decode);
SAME(Lz4DecodeOptions, backend, TheirLz4Decode, backend);
SAME(Lz4DecodeOptions, sort, TheirLz4Decode, sort_before_hw_decompress);
SAME(Lz4DecodeOptions, type, TheirLz4Decode, data_type);
SAME(Lz4DecodeOptions, bit_shuffle, TheirLz4Decode, bitshuffle_mode);

SAME_SIZE(ZstdDecodeOptions, nvcompBatchedZstdDecompressOpts_t);
SAME(ZstdDecodeOptions, backend, nvcompBatchedZstdDecompressOpts_t, backend);

// The types of nvCOMP's functions with our types of options, outcomes and streams. All options of 64 bytes are passed
// in the same way.
template <typename T>
struct AsOurs {
  using type = T;
};
template <typename T>
  requires(std::is_class_v<T> && sizeof(T) == sizeof(Options))
struct AsOurs<T> {
  using type = Options;
};
template <>
struct AsOurs<nvcompStatus_t> {
  using type = Outcome;
};
template <>
struct AsOurs<nvcompStatus_t*> {
  using type = Outcome*;
};
template <typename F>
struct Shape;
template <typename... Parameters>
struct Shape<nvcompStatus_t (*)(Parameters...)> {
  using type = Outcome (*)(typename AsOurs<Parameters>::type...);
};

#define SAME_FUNCTION(ours, theirs) \
  static_assert(std::is_same_v<decltype(Functions::ours), Shape<decltype(&theirs)>::type>)
#define SAME_FUNCTIONS(format, most, alignment)                                                  \
  SAME_FUNCTION(encode_temporary, nvcompBatched##format##CompressGetTempSize);                   \
  SAME_FUNCTION(encode_bound, nvcompBatched##format##CompressGetMaxOutputChunkSize);             \
  SAME_FUNCTION(encode, nvcompBatched##format##CompressAsync);                                   \
  SAME_FUNCTION(decode_temporary, nvcompBatched##format##DecompressGetTempSize);                 \
  SAME_FUNCTION(decode, nvcompBatched##format##DecompressAsync);                                 \
  static_assert(nvcomp##format##CompressionMaxAllowedChunkSize >= most &&                        \
                nvcomp##format##DecompressionMaxAllowedChunkSize >= most);                       \
  static_assert(nvcomp##format##RequiredCompressionAlignment <= alignment &&                     \
                nvcomp##format##RequiredDecompressionAlignment <= alignment)
SAME_FUNCTIONS(ANS, 1 << 20, 16);
SAME_FUNCTIONS(LZ4, 1 << 20, 16);
SAME_FUNCTIONS(Zstd, 1 << 20, 16);

}  // namespace jaxccomp::nvcomp
