// The bodies of the kernels of "onebit" (docs/wire_format_lossy.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/float_kernels.h"
#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/values.cuh"
#include "cuda/kernels/fixed_rate/coders.cuh"

namespace jaxccomp::cuda {

struct EncodeOneBitJob {
  const std::byte* values;
  std::byte* means;
  std::byte* bits;
  int64_t count;
  int block_shift;      // log2 of the values of a block
  int means_alignment, bits_alignment;
};

struct DecodeOneBitJob {
  const std::byte* means;
  const std::byte* bits;
  std::byte* values;
  int64_t count;
  int block_shift;
  int values_alignment, means_alignment;
};

// A block has 16 threads, each with two partial sums, which add in the order that the format defines. A thread issues
// 16 loads before it adds the first value.
template <typename T>
struct EncodeOneBit {
  using Job = EncodeOneBitJob;
  static constexpr int kSums = 16;
  static constexpr int kLoads = 16;
  static constexpr int64_t kBlocksOfCta = kThreads / kSums;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int lane = lanes.thread() % kSums;
    const int64_t block = lanes.cta() * kBlocksOfCta + lanes.thread() / kSums;
    const int64_t begin = block << job.block_shift, size = int64_t{1} << job.block_shift;
    const int64_t left = job.count - begin;
    const int64_t count = left < 0 ? 0 : left < size ? left : size;
    double plain = 0, negative = 0;
    int64_t negatives = 0;
    for (int64_t at = 0; at < size; at += kSums * kLoads) {
      uint32_t raw[kLoads];
      JAXCCOMP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int64_t index = at + i * kSums + lane;
        raw[i] = index < count ? LoadValue<T>(job.values, begin + index) : 0;
      }
      uint32_t own = 0;   // the signs of 16 values that this thread stores
      JAXCCOMP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const bool sign = (raw[i] >> (8 * Real<T>::kBytes - 1) & 1) != 0;
        Add(Real<T>::Widen(raw[i]), sign, &plain, &negative);
        const uint32_t warp_signs = lanes.Ballot(sign);
        const uint32_t signs = warp_signs >> (lanes.thread() & kSums) & 0xffff;
        own = lane == i ? signs : own;
      }
      negatives += Ones(own);
      StoreSigns(job, begin + at + lane * kSums, begin + count, own);
    }
    // Add the partial sums in a fixed tree: 8 apart, then 4, 2 and 1.
    for (int apart = kSums / 2; apart > 0; apart /= 2) {
      plain += XorDouble(lanes, plain, apart);
      negative += XorDouble(lanes, negative, apart);
      negatives += lanes.Xor(static_cast<uint32_t>(negatives), apart);
    }
    if (lane != 0 || count == 0) return;
    const uint32_t means[2] = {Mean(plain, count - negatives), Mean(negative, negatives)};
    const bool finite = (means[0] & kInfinity) != kInfinity && (means[1] & kInfinity) != kInfinity;
    const Words<8> words = {{finite ? means[0] : kNaN, finite ? means[1] : kNaN}};
    Store(job.means + block * 8, words, job.means_alignment);
  }

 private:
  // Values with none of these bits are below 2^-119 and count as 0.
  static constexpr uint32_t kCounted = 0x7c000000;

  JAXCCOMP_HOST_DEVICE static void Add(uint32_t bits, bool sign, double* plain, double* negative) {
    const double value = static_cast<double>(FloatOf((bits & kCounted) != 0 ? bits : 0));
    if (sign) {
      *negative = *negative + value;
    } else {
      *plain = *plain + value;
    }
  }

  JAXCCOMP_HOST_DEVICE static int Ones(uint32_t word) {
#if defined(__CUDA_ARCH__)
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
  }

  JAXCCOMP_HOST_DEVICE static void StoreSigns(const Job& job, int64_t begin, int64_t end,
                                              uint32_t signs) {
    std::byte* const to = job.bits + begin / 8;
    if (begin + 8 < end) {
      StoreNumber<2>(to, signs, job.bits_alignment);
    } else if (begin < end) {
      StoreNumber<1>(to, signs, 1);
    }
  }

  JAXCCOMP_DEVICE static double XorDouble(Lanes& lanes, double value, int mask) {
    const auto bits = __builtin_bit_cast(uint64_t, value);
    const uint32_t low = lanes.Xor(static_cast<uint32_t>(bits), mask);
    const uint32_t high = lanes.Xor(static_cast<uint32_t>(bits >> 32), mask);
    return __builtin_bit_cast(double, static_cast<uint64_t>(high) << 32 | low);
  }

  // Bits of the mean; 0 if its magnitude is below kMinScale.
  JAXCCOMP_HOST_DEVICE static uint32_t Mean(double sum, int64_t count) {
    if (count == 0) return 0;
    const uint32_t mean = BitsOf(static_cast<float>(sum / static_cast<double>(count)));
    return (mean & kMagnitude) < kMinScale ? 0 : mean;
  }
};

// A thread has kSteps runs of 16 bytes of values.
template <typename T, bool kAdd>
struct DecodeOneBit {
  using Job = DecodeOneBitJob;
  static constexpr int kRun = kVectorBytes / Real<T>::kBytes;
  static constexpr int kSteps = 4;
  static constexpr int64_t kValuesOfCta = int64_t{kThreads} * kSteps * kRun;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    uint32_t signs[kSteps] = {};
    Words<8> means[kSteps] = {};
    cuda::Run<T, kRun> values[kSteps] = {};
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      if (at >= job.count) continue;
      signs[step] = LoadNumber<1>(job.bits + at / 8, 1) >> (at % 8);
      means[step] = Load<8>(job.means + (at >> job.block_shift) * 8, job.means_alignment);
      if (kAdd && at + kRun <= job.count) values[step].Load(At(job, at), job.values_alignment);
    }
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      const uint32_t plain = means[step].word[0], negative = means[step].word[1];
      const auto decoded = [&](int i) { return signs[step] >> i & 1 ? negative : plain; };
      if (at + kRun <= job.count) {
        cuda::Run<T, kRun> result;
        JAXCCOMP_UNROLL
        for (int i = 0; i < kRun; ++i) {
          result.Set(i, Put<T, kAdd>(values[step].Get(i), decoded(i)));
        }
        result.Store(At(job, at), job.values_alignment);
      } else {
        for (int i = 0; at + i < job.count; ++i) PutValue<T, kAdd>(job.values, at + i, decoded(i));
      }
    }
  }

 private:
  JAXCCOMP_DEVICE static int64_t First(const Lanes& lanes, int step) {
    return ((lanes.cta() * kSteps + step) * kThreads + lanes.thread()) * kRun;
  }
  JAXCCOMP_HOST_DEVICE static std::byte* At(const Job& job, int64_t value) {
    return job.values + value * Real<T>::kBytes;
  }
};

}  // namespace jaxccomp::cuda
