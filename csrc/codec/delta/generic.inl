// The loops for every processor, which tables of instruction sets take what they have no better ones for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/delta/kernels.h"

namespace jaxccomp::delta {
namespace {

template <typename Word>
void MapOf(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  for (int64_t first = 0; first < count; first += kGranule) {
    const int n = static_cast<int>(std::min<int64_t>(kGranule, count - first));
    uint64_t bits = 0;
    for (int i = 0; i < n; ++i) {
      Word a, b;
      std::memcpy(&a, src + (first + i) * sizeof(Word), sizeof(Word));
      std::memcpy(&b, ref + (first + i) * sizeof(Word), sizeof(Word));
      bits |= static_cast<uint64_t>(a != b) << i;
    }
    map[first / kGranule] = bits;
  }
}

template <typename F>
void ClassesOf(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  for (int64_t i = 0; i < count; ++i) {
    const int below = base - F::ExponentOf(F::Load(ref + i * sizeof(typename F::Word)));
    classes[i] = static_cast<uint8_t>(std::clamp(below, 0, kClasses - 1));
  }
}

void SumsOf(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums) {
  for (int64_t first = 0; first < count; first += kGranule) {
    const int64_t end = std::min(first + kGranule, count);
    uint32_t sum = 0;
    for (int64_t i = first; i < end; ++i) sum += weights[classes[i]];
    sums[first / kGranule] = sum;
  }
}

[[maybe_unused]] std::byte* EncodeLanes(const uint64_t* map, const uint8_t* classes, int64_t count,
                       const LaneModel& model, std::byte* end) {
  uint32_t state[kLanes];
  std::fill(state, state + kLanes, kLeastLaneState);
  constexpr uint32_t kAll = 1 << kLaneBits;
  for (int64_t i = count - 1; i >= 0; --i) {
    const bool changed = map[i / kGranule] >> (i % kGranule) & 1;
    const uint32_t kept = model.kept[classes[i]];
    const uint32_t size = changed ? kAll - kept : kept;
    uint32_t& x = state[i % kLanes];
    if (x >= size << 16) {
      end -= 2;
      const auto word = static_cast<uint16_t>(x);
      std::memcpy(end, &word, 2);
      x >>= 16;
    }
    x = (x / size << kLaneBits) + x % size + (changed ? kept : 0);
  }
  end -= sizeof(state);
  std::memcpy(end, state, sizeof(state));
  return end;
}

[[maybe_unused]] bool DecodeLanes(std::span<const std::byte> from, const uint8_t* classes, int64_t count,
                 const LaneModel& model, uint64_t* map) {
  uint32_t state[kLanes];
  if (from.size() < sizeof(state)) return false;
  std::memcpy(state, from.data(), sizeof(state));
  const std::byte* at = from.data() + sizeof(state);
  const std::byte* const end = from.data() + from.size();
  constexpr uint32_t kAll = 1 << kLaneBits;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t kept = model.kept[classes[i]];
    uint32_t& x = state[i % kLanes];
    const uint32_t slot = x & (kAll - 1);
    const bool changed = slot >= kept;
    if (i % kGranule == 0) map[i / kGranule] = 0;
    map[i / kGranule] |= static_cast<uint64_t>(changed) << (i % kGranule);
    x = changed ? (kAll - kept) * (x >> kLaneBits) + slot - kept : kept * (x >> kLaneBits) + slot;
    if (x < kLeastLaneState) {
      if (end - at < 2) return false;
      uint16_t word;
      std::memcpy(&word, at, 2);
      at += 2;
      x = x << 16 | word;
    }
  }
  return at == end && std::all_of(state, state + kLanes, [](uint32_t x) { return x == kLeastLaneState; });
}

}  // namespace
}  // namespace jaxccomp::delta
