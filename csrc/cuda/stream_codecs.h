// Fixed-rate codecs as kernels on a program's stream, called by the traced plane (docs/gpus.md). They allocate
// nothing, copy nothing and do not block, so that they work on a stream that is being captured.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "common/dtype.h"
#include "common/status.h"

namespace jaxccomp {

// Contiguous rows of values, each encoded as one chunk; their codes, of MaxEncodedBytes each, are contiguous, too.
struct CodedRows {
  const Codec* codec;
  DType dtype;        // of the encoded values
  int64_t rows;
  int64_t count;      // values per row
};

// Thread-safe; the caller's current device must be the stream's. Pointers are to device memory, values aligned to
// their size; accesses are ordered by the stream, as in any kernel.
class StreamCodecs {
 public:
  virtual ~StreamCodecs() = default;

  // Whether there are kernels for the codec and dtype.
  virtual bool Runs(const Codec& codec, DType dtype) const = 0;

  // `keys`: for each row the random key {step, 0, 0}, as two words of the step, the lower first. Codecs without
  // random numbers do not read it, and it may be null.
  virtual Status Encode(const CodedRows& rows, const std::byte* values, const uint32_t* keys,
                        std::byte* codes, void* stream) const = 0;
  // Decodes to dtype `to`: the rows' dtype, or float32 without rounding for half types.
  virtual Status Decode(const CodedRows& rows, const std::byte* codes, DType to,
                        std::byte* values, void* stream) const = 0;
  // Sums the decoded rows in order. There must be at least one row.
  virtual Status DecodeSum(const CodedRows& rows, const std::byte* codes, DType to,
                           std::byte* sum, void* stream) const = 0;
};

}  // namespace jaxccomp
