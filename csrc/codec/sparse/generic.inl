// Loops that the compiler vectorises well in every instruction set. Each instruction set's file includes
// them in its anonymous namespace, so that the linker does not use one file's copy for another.

template <typename Word>
inline Word Magnitude(const std::byte* at) {
  Word word;
  __builtin_memcpy(&word, at, sizeof(Word));
  return word & static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
}

template <typename Word>
int64_t AboveFrom(const std::byte* src, int64_t begin, int64_t count, Word threshold,
                  uint16_t* offsets) {
  int64_t found = 0;
  for (int64_t i = begin; i < count; ++i) {
    offsets[found] = static_cast<uint16_t>(i);
    found += Magnitude<Word>(src + i * sizeof(Word)) >= threshold;
  }
  return found;
}

template <typename Word>
bool AnyAboveIn(const std::byte* src, int64_t count, Word threshold) {
  constexpr int64_t kPiece = 4096;   // values between tests for an early return
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = begin + kPiece < count ? begin + kPiece : count;
    Word any = 0;
    for (int64_t i = begin; i < end; ++i) {
      // Sets the sign bit if the magnitude reaches the threshold: neither has a sign.
      any |= static_cast<Word>(threshold - 1 - Magnitude<Word>(src + i * sizeof(Word)));
    }
    if (any >> (8 * sizeof(Word) - 1)) return true;
  }
  return false;
}

// Defined by the including file for its instruction set.
template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets);

constexpr Kernels TableOf(const char* name) {
  return {name,
          &AboveAll<uint16_t>,
          &AboveAll<uint32_t>,
          &AboveAll<uint64_t>,
          &AnyAboveIn<uint16_t>,
          &AnyAboveIn<uint32_t>,
          &AnyAboveIn<uint64_t>};
}
