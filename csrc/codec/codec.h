// What a codec is. Codecs are stateless, shared by all threads, and work on one chunk of
// one dtype at a time; any chunk decodes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "reduce/reduce.h"

namespace jaxccomp {

struct CodecTraits {
  std::string_view name;
  std::string_view description;
  bool lossless;
  bool fixed_rate;          // encoded size depends on dtype and element count only
  double relative_error;    // per element, |decode(encode(x)) - x| <= relative_error * |x|
                            // for normal finite x; 0 when lossless
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual const CodecTraits& traits() const = 0;
  // Whether values of `dtype` can be coded; others travel raw.
  virtual bool Supports(DType dtype) const = 0;
  // An upper bound, exact for fixed-rate codecs.
  virtual int64_t MaxEncodedBytes(DType dtype, int64_t count) const = 0;
  // Encodes `count` values into `dst` (at least MaxEncodedBytes) and returns the bytes written.
  // Unless the codec is fixed-rate, the rest of `dst` may be overwritten too.
  virtual Result<int64_t> Encode(DType dtype, const void* src, int64_t count,
                                 std::span<std::byte> dst) const = 0;
  // Decodes exactly `count` values. `src` comes from the wire and is not trusted: kDataLoss
  // when it is not a valid encoding of `count` values.
  virtual Status Decode(DType dtype, std::span<const std::byte> src, void* dst,
                        int64_t count) const = 0;
};

// "raw", "bf16", ...; nullptr and a listing Status in LookupCodec when unknown.
Result<const Codec*> LookupCodec(std::string_view spec);
std::span<const CodecTraits> CodecTable();

}  // namespace jaxccomp
