// Codecs of a fixed rate as parts of a program on a device: started on the program's own stream, in its
// order. Nothing is allocated, copied or waited for, so that a stream that is being captured takes
// them as well. The traced plane calls them (docs/gpus.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "common/dtype.h"
#include "common/status.h"

namespace jaxccomp {

// Rows of values, each encoded as one chunk. They lie one after the other, and so do their codes, of
// MaxEncodedBytes each.
struct CodedRows {
  const Codec* codec;
  DType dtype;        // of what was encoded
  int64_t rows;
  int64_t count;      // the values of a row
};

// Called by any thread, whose current device is the stream's. Addresses are of device memory, values
// aligned to their size. The memory belongs to the stream's order, as in any kernel.
class StreamCodecs {
 public:
  virtual ~StreamCodecs() = default;

  // Whether there are kernels for values of that type.
  virtual bool Runs(const Codec& codec, DType dtype) const = 0;

  // `keys`: null, or for each row the random key {step, 0, 0}, as two words of its step, the lower
  // first. What a codec without random numbers is given it does not read.
  virtual Status Encode(const CodedRows& rows, const std::byte* values, const uint32_t* keys,
                        std::byte* codes, void* stream) const = 0;
  // As values of `to`: the rows' dtype, or float32 for half types, which are then not rounded.
  virtual Status Decode(const CodedRows& rows, const std::byte* codes, DType to,
                        std::byte* values, void* stream) const = 0;
  // The sum of the decoded rows, the first one first, of which there is at least one.
  virtual Status DecodeSum(const CodedRows& rows, const std::byte* codes, DType to,
                           std::byte* sum, void* stream) const = 0;
};

}  // namespace jaxccomp
