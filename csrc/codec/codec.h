// What a codec is: an immutable object, shared by all threads, that turns a chunk of values of one
// dtype into bytes and back. Any chunk decodes alone. docs/wire_format.md has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "codec/workspace.h"
#include "common/dtype.h"
#include "common/status.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// How far a decoded value may be from what was encoded: for finite |x| <= range,
//   |decode(encode(x)) - x| <= relative * |x| + block * max |x| of its block + absolute,
// a block being `block_values` consecutive values of the chunk (0: all of them).
struct ErrorBound {
  double relative = 0;
  double block = 0;
  double absolute = 0;
  int64_t block_values = 0;
  double range = std::numeric_limits<double>::infinity();   // larger values become infinite
  // What becomes of NaN and infinity. Either each stays what it is, or they are never hidden: all
  // values of a block that has any become NaN.
  bool keeps_nonfinite = true;
};

// Which random numbers stochastic codecs draw: the same for the same key and position in the
// tensor, whatever the chunks, threads or machine.
struct RandomKey {
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint32_t rank = 0;
};

// What a call needs besides the values.
struct CodingContext {
  explicit CodingContext(Workspace& w) : workspace(w) {}

  Workspace& workspace;
  // Null, or `count` values that both sides hold, such as the parameters before an update. The
  // difference travels: the XOR with a lossless codec, else the numerical one. Decoding needs the
  // same values.
  const void* ref = nullptr;
  RandomKey key;
  int64_t first = 0;   // position in the tensor of the chunk's first value
};

// A set of dtypes.
using DTypeSet = uint32_t;
inline constexpr DTypeSet SetOf(DType t) { return DTypeSet{1} << static_cast<int>(t); }
inline constexpr DTypeSet kAllDTypes = (DTypeSet{1} << kDTypeCount) - 1;
inline constexpr DTypeSet kRealFloats = SetOf(DType::kFloat16) | SetOf(DType::kBFloat16) |
                                        SetOf(DType::kFloat32) | SetOf(DType::kFloat64);

class Codec {
 public:
  struct Traits {
    std::string spec;                  // canonical: reads back as this codec
    bool lossless = false;
    bool fixed_rate = false;           // the encoded size depends on dtype and count only
    bool one_pass_merge = false;       // DecodeMerge decodes a few values at a time
    bool takes_reference = false;      // forms the difference to a reference by itself
    bool slow = false;                 // a few MB/s, maybe: a chunk takes tens of milliseconds
    bool runs_on_host = true;          // else values must lie on a device that has it
    bool draws_alike = false;          // members draw the same random numbers for the same values of an
                                       // operation, so that what it keeps of them adds up
    DTypeSet dtypes = 0;               // values of others travel raw
  };

  virtual ~Codec() = default;
  const Traits& traits() const { return traits_; }
  bool Supports(DType dtype) const { return (traits_.dtypes & SetOf(dtype)) != 0; }

  // For the dtypes that it supports. All zero when lossless.
  virtual ErrorBound Bound(DType) const { return {}; }
  // What the encoded bytes are an array of, for a second stage to make use of.
  virtual DType EncodedDType(DType) const { return DType::kUInt8; }
  // The room that Encode needs, and more than which no encoding has; what it has exactly when
  // fixed_rate. -1 where `count` is negative or such bytes cannot be counted.
  virtual int64_t MaxEncodedBytes(DType dtype, int64_t count) const = 0;
  // Fewer than this no encoding has.
  virtual int64_t MinEncodedBytes(DType dtype, int64_t count) const {
    return traits_.fixed_rate ? MaxEncodedBytes(dtype, count) : count > 0;
  }
  // The same of values without a reference: what bounds the memory that a few hostile bytes can claim.
  virtual int64_t MinAloneEncodedBytes(DType dtype, int64_t count) const {
    return MinEncodedBytes(dtype, count);
  }

  // Encodes `count` values into `dst`, which has room for MaxEncodedBytes, and returns the bytes
  // written; what follows them in `dst` may be overwritten too. Pointers need no alignment.
  Result<int64_t> Encode(DType dtype, const void* src, int64_t count, std::span<std::byte> dst,
                         const CodingContext& context) const;
  // Decodes exactly `count` values. `src` comes from the wire and is not trusted: kDataLoss when it
  // is not an encoding of `count` values. `dst` may be the context's reference.
  Status Decode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                const CodingContext& context) const;
  // acc[i] = acc[i] op decoded[i], where the decoded values are never all in memory if
  // `one_pass_merge`. `acc` has the values' dtype, or is float32 for half types, which are then
  // not rounded on the way. When it fails, `acc` holds anything.
  Status DecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                     void* acc, int64_t count, const CodingContext& context) const;
  // Of values that have been encoded leaves what the encoding has lost (as AddResidual, reduce/residual.h),
  // where most are lost whole and so stay as they are. False, with nothing done, where that is no less work
  // than to decode. When it fails, `values` holds anything.
  Result<bool> KeepLost(DType dtype, std::span<const std::byte> src, void* values, int64_t count,
                        const CodingContext& context) const;

 protected:
  explicit Codec(Traits traits) : traits_(std::move(traits)) {}

  // What the above ask of an implementation, after dtype, count and sizes have been checked.
  // `count` is 0 only where the encoding of nothing has bytes. There is no reference unless
  // `takes_reference`.
  virtual Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const = 0;
  virtual Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                          const CodingContext& context) const = 0;
  // By default decodes all into the workspace first. One-pass codecs use codec/merge.h.
  virtual Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op,
                               DType acc_dtype, void* acc, int64_t count,
                               const CodingContext& context) const;
  virtual Result<bool> DoKeepLost(DType, std::span<const std::byte>, void* /*values*/, int64_t /*count*/,
                                  const CodingContext&) const {
    return false;
  }

  // kDataLoss: "codec 'int8': <what>".
  Status Invalid(const std::string& what) const;

 private:
  Status Check(DType dtype, int64_t count) const;
  Status CheckEncoded(DType dtype, std::span<const std::byte> src, int64_t count) const;
  Status DecodeWithRef(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                       const CodingContext& context) const;

  const Traits traits_;
};

// count * size_bytes, or -1 where that is negative or does not fit.
int64_t CheckedBytes(int64_t count, int64_t size_bytes);

}  // namespace jaxccomp
