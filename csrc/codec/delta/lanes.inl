// rANS with one state per vector lane. A part of kernels.inl.

constexpr int kWidth = kLanesOf<U32>;   // states in a vector

// `lane_bits`: the lanes that have a bit to code; kAll: all have one.
struct LaneVector {
  struct Tables {
    explicit Tables(const LaneModel& model)
        : zero(model.zero),
          reciprocal_zero(model.reciprocal),
          reciprocal_one(model.reciprocal + kClasses),
          shift_zero(model.shift),
          shift_one(model.shift + kClasses) {}
    Table16 zero, reciprocal_zero, reciprocal_one, shift_zero, shift_one;
  };

  void Load(const uint32_t* states) { state = vectors::Load<U32>(states); }
  void Store(uint32_t* states) const { vectors::Store(states, state); }

  template <bool kAll>
  std::byte* Encode(uint32_t one_bits, const uint8_t* classes, const Tables& t, uint32_t lane_bits,
                    std::byte* end) {
    const U32 all = Fill<U32>(kLaneScale), c = Widen(classes), zero = t.zero.At(c);
    const Mask<U32> ones = MaskOf<U32>(one_bits);
    const U32 size = Select(ones, all - zero, zero);
    // Whether the state is less than size << 16.
    const Mask<U32> fits = Greater(size, state >> 16);
    end = StoreHalvesBelow(end, state, ~BitsOf(fits) & lane_bits);
    // Computed for lanes without a bit too; the Select below keeps their state.
    const U32 x = Select(fits, state, state >> 16);
    const U32 quotient = MulHigh(x, t.reciprocal_zero.At(c, ones, t.reciprocal_one)) >>
                         t.shift_zero.At(c, ones, t.shift_one);
    // x + quotient * (all - size); for a 1 also the offset `zero`, which is all - size: hence quotient + 1.
    const U32 next = x + CountUp(quotient, ones) * (all - size);
    state = kAll ? next : Select(MaskOf<U32>(lane_bits), next, state);
    return end;
  }

  template <bool kAll>
  uint32_t Decode(const uint8_t* classes, const Table16& zero_of, uint32_t lane_bits,
                  const std::byte** at) {
    const U32 all = Fill<U32>(kLaneScale), zero = zero_of.At(Widen(classes));
    const U32 slot = state & (kLaneScale - 1);
    const Mask<U32> ones = Greater(slot, zero - 1);
    const U32 size = Select(ones, all - zero, zero);
    const U32 next = size * (state >> kLaneBits) + Select(ones, slot - zero, slot);
    const Mask<U32> empty = Greater(Fill<U32>(kMinLaneState), next);
    const U32 filled = next << 16 | TakeHalves(at, BitsOf(empty) & lane_bits);
    const U32 full = Select(empty, filled, next);
    state = kAll ? full : Select(MaskOf<U32>(lane_bits), full, state);
    return BitsOf(ones) & lane_bits;
  }

  U32 state;
};

// The bits of a group of lanes, and a mask of the lanes that have one.
template <int kLanes>
uint64_t LanesAt(const uint64_t* bits, int64_t i) {
  const uint64_t word = bits[i / 64];
  return kLanes == 64 ? word : word >> (i % 64) & 0xffffffff;
}
inline uint64_t LanesOf(int64_t count) { return (uint64_t{1} << count) - 1; }

template <int kLanes>
std::byte* EncodeLanesBy(const uint64_t* bits, const uint8_t* classes, int64_t count,
                         const LaneModel& model, uint32_t* states, std::byte* end) {
  constexpr int kVectors = kLanes / kWidth;
  constexpr uint32_t kPart = (uint32_t{1} << kWidth) - 1;
  const LaneVector::Tables tables(model);
  LaneVector parts[kVectors];
  for (int k = 0; k < kVectors; ++k) parts[k].Load(states + k * kWidth);
  int64_t i = count / kLanes * kLanes;
  if (i < count) {
    const uint64_t lanes = LanesOf(count - i), ones = LanesAt<kLanes>(bits, i);
    for (int k = kVectors - 1; k >= 0; --k) {
      const int at = k * kWidth;
      end = parts[k].template Encode<false>(static_cast<uint32_t>(ones >> at) & kPart,
                                            classes + i + at, tables,
                                            static_cast<uint32_t>(lanes >> at) & kPart, end);
    }
  }
  while (i > 0) {
    i -= kLanes;
    const uint64_t ones = LanesAt<kLanes>(bits, i);
    for (int k = kVectors - 1; k >= 0; --k) {
      const int at = k * kWidth;
      end = parts[k].template Encode<true>(static_cast<uint32_t>(ones >> at) & kPart,
                                           classes + i + at, tables, kPart, end);
    }
  }
  for (int k = 0; k < kVectors; ++k) parts[k].Store(states + k * kWidth);
  return end;
}

template <int kLanes>
const std::byte* DecodeLanesBy(const std::byte* at, const std::byte* end, const uint8_t* classes,
                               int64_t count, const uint32_t* zero, uint32_t* states,
                               uint64_t* bits) {
  constexpr int kVectors = kLanes / kWidth;
  constexpr uint32_t kPart = (uint32_t{1} << kWidth) - 1;
  const Table16 zero_of(zero);
  LaneVector parts[kVectors];
  for (int k = 0; k < kVectors; ++k) parts[k].Load(states + k * kWidth);
  for (int64_t i = 0; i < count; i += kLanes) {
    uint64_t ones = 0;
    const bool all = count - i >= kLanes;
    const uint64_t lanes = all ? ~uint64_t{0} : LanesOf(count - i);
    for (int k = 0; k < kVectors; ++k) {
      const int first = k * kWidth;
      const uint8_t* const of = classes + i + first;
      const uint32_t found =
          all ? parts[k].template Decode<true>(of, zero_of, kPart, &at)
              : parts[k].template Decode<false>(
                    of, zero_of, static_cast<uint32_t>(lanes >> first) & kPart, &at);
      ones |= static_cast<uint64_t>(found) << first;
    }
    if (at > end) return nullptr;
    uint64_t& word = bits[i / 64];
    word = i % 64 == 0 ? ones : word | ones << 32;
  }
  for (int k = 0; k < kVectors; ++k) parts[k].Store(states + k * kWidth);
  return at;
}
