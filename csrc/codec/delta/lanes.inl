// The loops over all lanes, for vectors of some of them.
//
// A Vector has kWidth lanes; Load(states) and Store(states) it; a Tables of a LaneModel; and
//   std::byte* Encode<kAll>(ones, classes, tables, lanes, end), which writes up to 32 bytes below `end`, and
//   uint32_t Decode<kAll>(classes, zero, lanes, &at), the ones, with Zero of a LaneModel's; reads 32 bytes.
// `lanes` are those that have a bit; kAll: all have.
#include <cstddef>
#include <cstdint>

#include "codec/delta/kernels.h"

namespace jaxccomp::delta {
namespace {

// The bits of a group of lanes, and which of these have one.
template <int kLanes>
uint64_t LanesAt(const uint64_t* bits, int64_t i) {
  const uint64_t word = bits[i / 64];
  return kLanes == 64 ? word : word >> (i % 64) & 0xffffffff;
}
inline uint64_t LanesOf(int64_t count) { return (uint64_t{1} << count) - 1; }

template <typename Vector, int kLanes>
std::byte* EncodeLanesBy(const uint64_t* bits, const uint8_t* classes, int64_t count,
                         const LaneModel& model, uint32_t* states, std::byte* end) {
  constexpr int kParts = kLanes / Vector::kWidth;
  constexpr uint32_t kPart = (uint32_t{1} << Vector::kWidth) - 1;
  const typename Vector::Tables tables(model);
  Vector vectors[kParts];
  for (int k = 0; k < kParts; ++k) vectors[k].Load(states + k * Vector::kWidth);
  int64_t i = count / kLanes * kLanes;
  if (i < count) {
    const uint64_t lanes = LanesOf(count - i), ones = LanesAt<kLanes>(bits, i);
    for (int k = kParts - 1; k >= 0; --k) {
      const int at = k * Vector::kWidth;
      end = vectors[k].template Encode<false>(static_cast<uint32_t>(ones >> at) & kPart,
                                              classes + i + at, tables,
                                              static_cast<uint32_t>(lanes >> at) & kPart, end);
    }
  }
  while (i > 0) {
    i -= kLanes;
    const uint64_t ones = LanesAt<kLanes>(bits, i);
    for (int k = kParts - 1; k >= 0; --k) {
      const int at = k * Vector::kWidth;
      end = vectors[k].template Encode<true>(static_cast<uint32_t>(ones >> at) & kPart,
                                             classes + i + at, tables, kPart, end);
    }
  }
  for (int k = 0; k < kParts; ++k) vectors[k].Store(states + k * Vector::kWidth);
  return end;
}

template <typename Vector, int kLanes>
const std::byte* DecodeLanesBy(const std::byte* at, const std::byte* end, const uint8_t* classes,
                               int64_t count, const uint32_t* zero, uint32_t* states,
                               uint64_t* bits) {
  constexpr int kParts = kLanes / Vector::kWidth;
  constexpr uint32_t kPart = (uint32_t{1} << Vector::kWidth) - 1;
  const typename Vector::Zero zero_of(zero);
  Vector vectors[kParts];
  for (int k = 0; k < kParts; ++k) vectors[k].Load(states + k * Vector::kWidth);
  for (int64_t i = 0; i < count; i += kLanes) {
    uint64_t ones = 0;
    const bool all = count - i >= kLanes;
    const uint64_t lanes = all ? ~uint64_t{0} : LanesOf(count - i);
    for (int k = 0; k < kParts; ++k) {
      const int first = k * Vector::kWidth;
      const uint8_t* const of = classes + i + first;
      const uint32_t found =
          all ? vectors[k].template Decode<true>(of, zero_of, kPart, &at)
              : vectors[k].template Decode<false>(
                    of, zero_of, static_cast<uint32_t>(lanes >> first) & kPart, &at);
      ones |= static_cast<uint64_t>(found) << first;
    }
    if (at > end) return nullptr;
    uint64_t& word = bits[i / 64];
    word = i % 64 == 0 ? ones : word | ones << 32;
  }
  for (int k = 0; k < kParts; ++k) vectors[k].Store(states + k * Vector::kWidth);
  return at;
}

}  // namespace
}  // namespace jaxccomp::delta
