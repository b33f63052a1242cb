// The binary interface of nvCOMP 6's batched low-level functions and options, as far as used here;
// tests/unit/test_nvcomp.py compares it with nvCOMP's headers. The functions of all formats have the same
// types, with 64 bytes of options.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace jaxccomp::nvcomp {

inline constexpr int kMajorVersion = 6;
inline constexpr const char* kSoname = "libnvcomp.so.6";

// The status of calls and, in device memory, of each chunk.
using Outcome = int32_t;
inline constexpr Outcome kSuccess = 0;

// The value type that nvCOMP assumes. The numbers go on the wire.
enum class Type : int32_t {
  kBytes = 1, kUInt16 = 3, kUInt32 = 5, kFloat16 = 10, kFloat32 = 11
};

// The default may choose a hardware engine, which does not report invalid input.
inline constexpr int32_t kDecodeByKernels = 2;

// Unused bytes are 0.
struct alignas(8) Options {
  unsigned char bytes[64] = {};
};

struct AnsEncodeOptions {
  int32_t variant = 0;
  Type type;
  uint8_t sub_chunks = 0, states = 0, histogram_reduction = 0;
  char reserved[53] = {};
};
struct AnsDecodeOptions {
  int32_t backend = kDecodeByKernels;
  Type type;
  uint8_t sub_chunks = 0, states = 0, skip_validation = 0;
  char reserved[53] = {};
};
struct Lz4EncodeOptions {
  Type type;
  int32_t bit_shuffle;
  char reserved[56] = {};
};
struct Lz4DecodeOptions {
  int32_t backend = kDecodeByKernels;
  int32_t sort = 0;
  Type type;
  int32_t bit_shuffle;
  char reserved[48] = {};
};
struct ZstdDecodeOptions {
  int32_t backend = kDecodeByKernels;
  char reserved[60] = {};
};

// Arrays have an entry for each chunk. Arrays and chunks are in device-accessible memory.
struct Functions {
  Outcome (*encode_temporary)(size_t chunks, size_t max_chunk_bytes, Options, size_t* bytes,
                              size_t all_bytes, CUstream_st*) = nullptr;
  Outcome (*encode_bound)(size_t max_chunk_bytes, Options, size_t* bytes) = nullptr;
  Outcome (*encode)(const void* const* values, const size_t* value_bytes, size_t max_chunk_bytes,
                    size_t chunks, void* temporary, size_t temporary_bytes, void* const* codes,
                    size_t* code_bytes, Options, Outcome* outcomes, CUstream_st*) = nullptr;
  Outcome (*decode_temporary)(size_t chunks, size_t max_chunk_bytes, Options, size_t* bytes,
                              size_t all_bytes, CUstream_st*) = nullptr;
  Outcome (*decode)(const void* const* codes, const size_t* code_bytes, const size_t* room,
                    size_t* value_bytes, size_t chunks, void* temporary, size_t temporary_bytes,
                    void* const* values, Options, Outcome* outcomes, CUstream_st*) = nullptr;
};

}  // namespace jaxccomp::nvcomp
