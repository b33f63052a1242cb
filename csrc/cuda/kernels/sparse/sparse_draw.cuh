// The last kernel of encoding with "randomk": values at places that are drawn.
#pragma once

#include "cuda/kernels/sparse/sparse_decode.cuh"
#include "cuda/kernels/sparse/sparse_select.cuh"

namespace jaxccomp::cuda {

struct DrawValuesJob {
  SelectJob select;   // has found out whether all values are finite
  std::byte* code;
  int64_t bytes;
  RandomKey key;
  uint64_t first;
  bool unbiased;
  float greatest;     // finite value
};

template <typename T>
struct DrawValues {
  using Job = DrawValuesJob;
  static constexpr int kSharedWords = 1;
  static constexpr int kEach = 4;   // parts that draw together

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const SelectJob& select = job.select;
    const int64_t ctas = CeilDiv(select.kept, int64_t{kThreads} * kEach);
    if (select.state->nonfinite != 0) return WriteNonFinite(lanes, ctas, job.code, job.bytes);
    if (lanes.cta() == 0 && lanes.thread() == 0) WriteHead(job);
    std::byte* const words = job.code + sparse::kFlagBytes + sparse::kKeyBytes;
    const int alignment = Alignment(words);
    const int64_t four = lanes.cta() * kThreads + lanes.thread();
    if (four * kEach >= select.kept) return;
    const DrawnParts parts = {select.count, select.kept};
    const Philox4x32 random = Philox(job.key, job.first + static_cast<uint64_t>(four));
    int64_t begin = parts.Begin(four * kEach);
    JAXCCOMP_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int64_t part = four * kEach + i;
      if (part >= select.kept) return;
      const int64_t end = parts.Begin(part + 1);
      uint32_t word = LoadValue<T>(
          select.values, DrawnParts::Place(begin, end, random[static_cast<size_t>(i)]));
      if (job.unbiased) word = Scaled(word, static_cast<float>(end - begin), job.greatest);
      StoreNumber<Real<T>::kBytes>(words + part * Real<T>::kBytes, word, alignment);
      begin = end;
    }
  }

 private:
  JAXCCOMP_HOST_DEVICE static void WriteHead(const Job& job) {
    std::byte* const at = job.code + sparse::kFlagBytes;
    job.code[0] = sparse::kFinite;
    StoreLong(at, job.key.step);
    StoreNumber<4>(at + 8, job.key.tensor, 1);
    StoreNumber<4>(at + 12, job.key.rank, 1);
    StoreLong(at + 16, job.first);
  }

  // The product, or the greatest value where that overflows.
  JAXCCOMP_HOST_DEVICE static uint32_t Scaled(uint32_t word, float factor, float greatest) {
    const uint32_t bits = BitsOf(FloatOf(Real<T>::Widen(word)) * factor);
    const uint32_t most = BitsOf(greatest);
    const uint32_t magnitude = (bits & kMagnitude) > most ? most : bits & kMagnitude;
    return Real<T>::NarrowNumber((bits & ~kMagnitude) | magnitude);
  }
};

}  // namespace jaxccomp::cuda
