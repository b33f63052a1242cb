// The interface of codecs. A codec encodes chunks of values of one dtype to bytes, and decodes each chunk
// without the others. It is immutable and shared by all threads. The bytes: docs/wire_format.md.
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

// The largest difference between a decoded and an encoded value: for finite |x| <= range,
//   |decode(encode(x)) - x| <= relative * |x| + block * max |x| of its block + absolute,
// where a block is `block_values` consecutive values of the chunk (0: all of them).
struct ErrorBound {
  double relative = 0;
  double block = 0;
  double absolute = 0;
  int64_t block_values = 0;
  double range = std::numeric_limits<double>::infinity();   // larger values become infinite
  // True: NaN and infinity are kept. False: one NaN or infinity makes all decoded values of its block NaN, so that it
  // stays visible.
  bool keeps_nonfinite = true;
};

// The seed of stochastic codecs. Random numbers depend only on the key and the position in the tensor,
// not on chunks, threads or machine.
struct RandomKey {
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint32_t rank = 0;
};

// The arguments of a call other than the values.
struct CodingContext {
  explicit CodingContext(Workspace& w) : workspace(w) {}

  Workspace& workspace;
  // Null, or the reference (delta base): `count` values that encoder and decoder both have, such as the parameters
  // before an update. A lossless codec encodes the XOR with the reference, other codecs encode the difference. Decoding
  // needs the same reference.
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
    bool takes_reference = false;      // computes the difference to a reference itself
    bool slow = false;                 // possibly only a few MB/s: a chunk takes tens of milliseconds
    bool runs_on_host = true;          // false: values must be on a device that has the codec
    bool draws_alike = false;          // all ranks of an operation draw the same random numbers: the values that
                                       // they keep are at the same positions, and can be summed
    DTypeSet dtypes = 0;               // values of other dtypes are sent raw
  };

  virtual ~Codec() = default;
  const Traits& traits() const { return traits_; }
  bool Supports(DType dtype) const { return (traits_.dtypes & SetOf(dtype)) != 0; }

  // For supported dtypes. All zero if lossless.
  virtual ErrorBound Bound(DType) const { return {}; }
  // The dtype of the encoded bytes as an array, for a second stage.
  virtual DType EncodedDType(DType) const { return DType::kUInt8; }
  // The bytes that Encode needs: an upper bound of an encoding's size; with fixed_rate the exact size. -1 if
  // `count` is negative or the bytes overflow.
  virtual int64_t MaxEncodedBytes(DType dtype, int64_t count) const = 0;
  // A lower bound of an encoding's size.
  virtual int64_t MinEncodedBytes(DType dtype, int64_t count) const {
    return traits_.fixed_rate ? MaxEncodedBytes(dtype, count) : count > 0;
  }
  // The lower bound without a reference. It limits the memory that a decoder allocates for a short untrusted input.
  virtual int64_t MinAloneEncodedBytes(DType dtype, int64_t count) const {
    return MinEncodedBytes(dtype, count);
  }

  // Encodes `count` values into `dst`, which has room for MaxEncodedBytes, and returns the bytes
  // written; later bytes of `dst` may be overwritten too. Pointers need no alignment.
  Result<int64_t> Encode(DType dtype, const void* src, int64_t count, std::span<std::byte> dst,
                         const CodingContext& context) const;
  // Decodes exactly `count` values. `src` is untrusted: kDataLoss if it is not an encoding of `count`
  // values. `dst` may be the context's reference.
  Status Decode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                const CodingContext& context) const;
  // acc[i] = acc[i] op decoded[i]. With `one_pass_merge`, the decoded values are never all in memory.
  // `acc` has the values' dtype, or is float32 for half types, which are then not rounded before the
  // reduction. After an error, `acc` is undefined.
  Status DecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                     void* acc, int64_t count, const CodingContext& context) const;
  // values -= decode(src), in place (as AddResidual, reduce/residual.h), for codecs that drop most values: dropped
  // values stay unchanged. Returns false, and changes nothing, if this is not faster than decoding. After an error,
  // `values` is undefined.
  Result<bool> KeepLost(DType dtype, std::span<const std::byte> src, void* values, int64_t count,
                        const CodingContext& context) const;

 protected:
  explicit Codec(Traits traits) : traits_(std::move(traits)) {}

  // The implementations of the functions above, which have checked dtype, count and sizes. `count` is 0 only if an
  // encoding of no values has bytes. The reference is null unless `takes_reference`.
  virtual Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const = 0;
  virtual Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                          const CodingContext& context) const = 0;
  // The default decodes all values into the workspace first. One-pass codecs use codec/merge.h.
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

// count * size_bytes, or -1 if it is negative or overflows.
int64_t CheckedBytes(int64_t count, int64_t size_bytes);

}  // namespace jaxccomp
