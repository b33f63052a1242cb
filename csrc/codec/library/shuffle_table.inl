// The table of Shuffle<word bytes> and Unshuffle<word bytes>, which the including file defines in its
// anonymous namespace.
constexpr ShuffleKernels TableOf(const char* name) {
  return {name,
          [](const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst) {
            if (word_bytes == 2) return Shuffle<2>(src, count, dst);
            if (word_bytes == 4) return Shuffle<4>(src, count, dst);
            Shuffle<8>(src, count, dst);
          },
          [](const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst) {
            if (word_bytes == 2) return Unshuffle<2>(src, count, dst);
            if (word_bytes == 4) return Unshuffle<4>(src, count, dst);
            Unshuffle<8>(src, count, dst);
          }};
}
