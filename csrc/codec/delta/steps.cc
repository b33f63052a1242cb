#include "codec/delta/steps.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace jaxccomp::delta {
namespace {

// Of a state: from 2^15 to 2^31, refilled by 16 bits.
constexpr uint32_t kLeastState = 1 << 15;
constexpr int kStates = 4;
// With fewer changes there is one.
constexpr int64_t kOneStateBelow = 256;

int StatesOf(size_t changes) { return changes < kOneStateBelow ? 1 : kStates; }

}  // namespace

int64_t MostStepBytes(int64_t changes) {
  // 11 bits at most and up to 30 low ones, words of 16 bits, states.
  return changes * 6 + 4 * kStates + 16;
}

void StepTables::Set(const Model& model) {
  for (int c = 0; c < kClasses; ++c) {
    if (model.rate[c] == kNever) continue;
    Class& of = classes_[c];
    uint16_t start = 0;
    for (int s = 0; s < kLengths; ++s) {
      const int size = model.length[c][s];
      // (away + 1/2) / 16 of them, and at least 1 of each direction.
      const int away = size < 2 ? size : std::clamp(size * (2 * model.away + 1) / 32, 1, size - 1);
      for (int direction : {0, 1}) {
        const int symbol = 2 * s + direction;
        of.start[symbol] = start;
        of.size[symbol] = static_cast<uint16_t>(direction == 1 ? away : size - away);
        std::memset(of.found + start, symbol, of.size[symbol]);
        start = static_cast<uint16_t>(start + of.size[symbol]);
      }
    }
  }
}

std::byte* EncodeSteps(std::span<const Change> changes, const StepTables& tables, std::byte* at) {
  const int states = StatesOf(changes.size());
  uint32_t state[kStates];
  std::fill(std::begin(state), std::end(state), kLeastState);
  // Low bits go at the front of what is written, in order; words at its back, the last change first.
  std::byte* const words_end = at + MostStepBytes(std::ssize(changes));
  std::byte* words = words_end;
  for (int64_t i = std::ssize(changes) - 1; i >= 0; --i) {
    const Change& change = changes[i];
    const LengthCode code = CodeOfLength(change.length);
    const int symbol = 2 * code.symbol + change.away;
    const uint32_t size = tables[change.group].size[symbol];
    uint32_t& x = state[i % states];
    if (x >= size << (31 - kLengthScaleBits)) {
      words -= 2;
      const auto word = static_cast<uint16_t>(x);
      std::memcpy(words, &word, 2);
      x >>= 16;
    }
    x = (x / size << kLengthScaleBits) + x % size + tables[change.group].start[symbol];
  }
  for (int s = 0; s < states; ++s, at += 4) std::memcpy(at, &state[s], 4);
  const int64_t word_bytes = words_end - words;
  std::memmove(at, words, word_bytes);
  at += word_bytes;
  uint64_t bits = 0;
  int held = 0;
  for (const Change& change : changes) {
    const int raw_bits = CodeOfLength(change.length).raw_bits;
    if (raw_bits == 0) continue;
    bits |= static_cast<uint64_t>(change.length & ((uint32_t{1} << raw_bits) - 1)) << held;
    for (held += raw_bits; held >= 8; held -= 8, bits >>= 8) *at++ = static_cast<std::byte>(bits);
  }
  if (held > 0) *at++ = static_cast<std::byte>(bits);
  return at;
}

bool DecodeSteps(std::span<const std::byte> from, const Model& model, const StepTables& tables,
                 std::span<Change> changes) {
  const int states = StatesOf(changes.size());
  if (std::ssize(from) < 4 * states) return false;
  uint32_t state[kStates];
  std::memcpy(state, from.data(), static_cast<size_t>(4 * states));
  const std::byte* at = from.data() + 4 * states;
  const std::byte* const end = from.data() + from.size();
  constexpr uint32_t kMask = (1 << kLengthScaleBits) - 1;
  for (size_t i = 0; i < changes.size(); ++i) {
    Change& change = changes[i];
    if (model.rate[change.group] == kNever) return false;
    const StepTables::Class& of = tables[change.group];
    uint32_t& x = state[i % static_cast<size_t>(states)];
    const uint32_t slot = x & kMask;
    const int symbol = of.found[slot];
    x = of.size[symbol] * (x >> kLengthScaleBits) + slot - of.start[symbol];
    if (x < kLeastState) {
      if (end - at < 2) return false;
      uint16_t word;
      std::memcpy(&word, at, 2);
      at += 2;
      x = x << 16 | word;
    }
    change.length = static_cast<uint32_t>(symbol >> 1);   // its symbol, for now
    change.away = symbol & 1;
  }
  for (int s = 0; s < states; ++s) {
    if (state[s] != kLeastState) return false;
  }
  uint64_t bits = 0;
  int held = 0;
  for (Change& change : changes) {
    const int raw_bits = RawBits(static_cast<int>(change.length));
    change.length = LeastLength(static_cast<int>(change.length));
    if (raw_bits == 0) continue;
    for (; held < raw_bits; held += 8) {
      if (at == end) return false;
      bits |= static_cast<uint64_t>(*at++) << held;
    }
    change.length |= static_cast<uint32_t>(bits & ((uint64_t{1} << raw_bits) - 1));
    bits >>= raw_bits;
    held -= raw_bits;
  }
  return at == end && bits == 0;
}

}  // namespace jaxccomp::delta
