// The bodies of the kernels that encode and decode blocks. docs/wire_format_lossy.md has the layout of codes.
//
// A column is kRun bytes of codes and their values: kParts runs of kRun values, each loaded with one or two accesses
// of 16 bytes. A thread has kSteps columns, kThreads apart, and thereby at least 64 bytes of values in flight;
// consecutive threads have consecutive columns. A block has at most as many columns as a CTA has threads, which find
// the block's greatest magnitude together. An incomplete last block has a separate CTA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/random.cuh"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

// Random bits are drawn for eight values at once.
template <typename Coder, typename T>
inline constexpr int kRunValues = Coder::kRandom || Real<T>::kBytes == 2 ? 8 : 4;

// The layout of a chunk's blocks, and how threads divide them.
struct BlockPlan {
  int64_t full_ctas;    // CTAs with full blocks
  int64_t columns;      // of all full blocks
  int64_t rest;         // values of the incomplete last block
  int block_shift;      // log2 of the values of a block
  int column_shift;     // log2 of the columns of a block
  int values_alignment, headers_alignment, codes_alignment;
};

struct EncodeBlocksJob {
  BlockPlan plan;
  const std::byte* values;
  std::byte* headers;
  std::byte* codes;
  float threshold;
  const uint32_t* step_dev;   // for LoadStep; only read if the coder is random
};

struct DecodeBlocksJob {
  BlockPlan plan;
  const std::byte* headers;
  const std::byte* codes;
  std::byte* values;
  float threshold;
  float limit;
};

// Common constants and indices of the bodies.
template <typename Coder, typename T>
struct BlockShape {
  static constexpr int kRun = kRunValues<Coder, T>;
  static constexpr int kParts = 8 / Coder::kBits;
  static constexpr int kSteps = kParts < 4 ? 4 / kParts : 1;
  static constexpr int kColumnsOfCta = kThreads * kSteps;
  static constexpr uint32_t kCodeMask = (1u << Coder::kBits) - 1;
  static constexpr uint32_t kCodeMasks = 0x01010101u * kCodeMask;

  JAXCCOMP_DEVICE static int64_t Column(const Lanes& lanes, int step) {
    return (lanes.cta() * kSteps + step) * kThreads + lanes.thread();
  }
  JAXCCOMP_HOST_DEVICE static int64_t Block(const BlockPlan& plan, int64_t column) {
    return column >> plan.column_shift;
  }
  JAXCCOMP_HOST_DEVICE static int64_t ColumnOfBlock(const BlockPlan& plan, int64_t column) {
    return column & ((int64_t{1} << plan.column_shift) - 1);
  }
  // The first value of a run.
  JAXCCOMP_HOST_DEVICE static int64_t Value(const BlockPlan& plan, int64_t column, int part) {
    return (Block(plan, column) << plan.block_shift) +
           (static_cast<int64_t>(part) * kRun << plan.column_shift) +
           ColumnOfBlock(plan, column) * kRun;
  }
  // The incomplete block: its number, first value and bytes of codes.
  JAXCCOMP_HOST_DEVICE static int64_t RestBlock(const BlockPlan& plan) {
    return plan.columns >> plan.column_shift;
  }
  JAXCCOMP_HOST_DEVICE static int64_t RestValue(const BlockPlan& plan) {
    return RestBlock(plan) << plan.block_shift;
  }
  JAXCCOMP_HOST_DEVICE static int64_t RestBytes(const BlockPlan& plan) {
    return (plan.rest + kParts - 1) / kParts;
  }
};

// The lowest bytes of four numbers.
JAXCCOMP_HOST_DEVICE inline uint32_t PackBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24;
#endif
}

template <typename Coder, typename T>
struct EncodeBlocks : BlockShape<Coder, T> {
  using Job = EncodeBlocksJob;
  using Shape = BlockShape<Coder, T>;
  using Shape::kParts, Shape::kRun, Shape::kSteps;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const BlockPlan& plan = job.plan;
    const uint64_t random_step = Coder::kRandom ? LoadStep(job.step_dev) : 0;
    if (lanes.cta() == plan.full_ctas) return EncodeRest(lanes, job, random_step);
    cuda::Run<T, kRun> values[kSteps][kParts] = {};
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = Shape::Column(lanes, step);
      if (column >= plan.columns) continue;
      JAXCCOMP_UNROLL
      for (int part = 0; part < kParts; ++part) {
        values[step][part].Load(
            job.values + Shape::Value(plan, column, part) * Real<T>::kBytes,
            plan.values_alignment);
      }
    }
    uint32_t greatest[kSteps] = {};
    if constexpr (Coder::kHeaderBytes > 0) {
      JAXCCOMP_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        JAXCCOMP_UNROLL
        for (int part = 0; part < kParts; ++part) {
          JAXCCOMP_UNROLL
          for (int i = 0; i < kRun; ++i) {
            const uint32_t magnitude = Real<T>::Widen(values[step][part].Get(i)) & kMagnitude;
            greatest[step] = greatest[step] > magnitude ? greatest[step] : magnitude;
          }
        }
      }
      Greatest(lanes, greatest, 1 << plan.column_shift);
    }
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = Shape::Column(lanes, step);
      if (column < plan.columns) {
        EncodeColumn(job, random_step, column, greatest[step], values[step]);
      }
    }
  }

 private:
  JAXCCOMP_HOST_DEVICE static void EncodeColumn(const Job& job, uint64_t random_step,
                                                int64_t column, uint32_t greatest,
                                                const cuda::Run<T, kRun> (&values)[kParts]) {
    const BlockPlan& plan = job.plan;
    const auto encoder = Coder::MakeEncoder(greatest, job.threshold);
    if constexpr (Coder::kHeaderBytes > 0) {
      if (Shape::ColumnOfBlock(plan, column) == 0) {
        StoreNumber<Coder::kHeaderBytes>(
            job.headers + Shape::Block(plan, column) * Coder::kHeaderBytes, encoder.header,
            plan.headers_alignment);
      }
    }
    Words<kRun> bytes = {};
    JAXCCOMP_UNROLL
    for (int part = 0; part < kParts; ++part) {
      RandomEight random = {};
      if constexpr (Coder::kRandom) {
        static_assert(kRun == 8);
        random = DrawEight(random_step, Shape::Value(plan, column, part));
      }
      JAXCCOMP_UNROLL
      for (int i = 0; i < kRun; i += 4) {
        uint32_t code[4];
        JAXCCOMP_UNROLL
        for (int j = 0; j < 4; ++j) {
          const uint32_t bits = Real<T>::Widen(values[part].Get(i + j));
          code[j] = Coder::Code(encoder, bits, Coder::kRandom ? random.Get(i + j) : 0);
        }
        const uint32_t packed = PackBytes(code[0], code[1], code[2], code[3]);
        bytes.word[i / 4] |= (packed & Shape::kCodeMasks) << (part * Coder::kBits);
      }
    }
    Store(job.codes + column * kRun, bytes, plan.codes_alignment);
  }

  JAXCCOMP_DEVICE static void EncodeRest(Lanes& lanes, const Job& job, uint64_t random_step) {
    const BlockPlan& plan = job.plan;
    const int64_t begin = Shape::RestValue(plan), bytes = Shape::RestBytes(plan);
    const auto bits_of = [&](int64_t i) {
      return Real<T>::Widen(LoadValue<T>(job.values, begin + i));
    };
    uint32_t greatest[1] = {};
    for (int64_t i = lanes.thread(); i < plan.rest; i += kThreads) {
      const uint32_t magnitude = bits_of(i) & kMagnitude;
      greatest[0] = greatest[0] > magnitude ? greatest[0] : magnitude;
    }
    Greatest(lanes, greatest, kThreads);
    const auto encoder = Coder::MakeEncoder(greatest[0], job.threshold);
    if constexpr (Coder::kHeaderBytes > 0) {
      if (lanes.thread() == 0) {
        StoreNumber<Coder::kHeaderBytes>(
            job.headers + Shape::RestBlock(plan) * Coder::kHeaderBytes, encoder.header,
            plan.headers_alignment);
      }
    }
    for (int64_t at = lanes.thread(); at < bytes; at += kThreads) {
      uint32_t byte = 0;
      for (int part = 0; part < kParts && at + part * bytes < plan.rest; ++part) {
        const int64_t i = at + part * bytes;
        uint32_t random = 0;
        if constexpr (Coder::kRandom) {
          random = DrawOne(random_step, begin + i);
        }
        byte |= (Coder::Code(encoder, bits_of(i), random) & Shape::kCodeMask)
                << (part * Coder::kBits);
      }
      StoreNumber<1>(job.codes + plan.columns * kRun + at, byte, 1);
    }
  }
};

// Stores the decoded values, or adds them to the values in memory (kAdd).
template <typename Coder, typename T, bool kAdd>
struct DecodeBlocks : BlockShape<Coder, T> {
  using Job = DecodeBlocksJob;
  using Shape = BlockShape<Coder, T>;
  using Shape::kParts, Shape::kRun, Shape::kSteps;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const BlockPlan& plan = job.plan;
    if (lanes.cta() == plan.full_ctas) return DecodeRest(lanes, job);
    uint32_t headers[kSteps] = {};
    Words<kRun> bytes[kSteps] = {};
    cuda::Run<T, kRun> values[kSteps][kParts] = {};
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = Shape::Column(lanes, step);
      if (column >= plan.columns) continue;
      bytes[step] = Load<kRun>(job.codes + column * kRun, plan.codes_alignment);
      headers[step] = Header(job, Shape::Block(plan, column));
      JAXCCOMP_UNROLL
      for (int part = 0; kAdd && part < kParts; ++part) {
        values[step][part].Load(At(job, column, part), plan.values_alignment);
      }
    }
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = Shape::Column(lanes, step);
      if (column >= plan.columns) continue;
      const auto decoder = Coder::MakeDecoder(headers[step], job.limit, job.threshold);
      JAXCCOMP_UNROLL
      for (int part = 0; part < kParts; ++part) {
        uint32_t decoded[kRun];
        JAXCCOMP_UNROLL
        for (int i = 0; i < kRun; ++i) {
          const uint32_t codes =
              bytes[step].word[i / 4] >> (part * Coder::kBits) & Shape::kCodeMasks;
          decoded[i] = Coder::Value(decoder, codes >> (i % 4 * 8) & 0xff);
        }
        if (decoder.special) {
          JAXCCOMP_UNROLL
          for (int i = 0; i < kRun; ++i) decoded[i] = Coder::Finish(decoder, decoded[i]);
        }
        cuda::Run<T, kRun> result;
        JAXCCOMP_UNROLL
        for (int i = 0; i < kRun; ++i) {
          result.Set(i, Put<T, kAdd>(values[step][part].Get(i), decoded[i]));
        }
        result.Store(At(job, column, part), plan.values_alignment);
      }
    }
  }

 private:
  JAXCCOMP_HOST_DEVICE static uint32_t Header(const Job& job, int64_t block) {
    if constexpr (Coder::kHeaderBytes == 0) {
      return 0;
    } else {
      return LoadNumber<Coder::kHeaderBytes>(job.headers + block * Coder::kHeaderBytes,
                                             job.plan.headers_alignment);
    }
  }
  JAXCCOMP_HOST_DEVICE static std::byte* At(const Job& job, int64_t column, int part) {
    return job.values + Shape::Value(job.plan, column, part) * Real<T>::kBytes;
  }

  JAXCCOMP_DEVICE static void DecodeRest(Lanes& lanes, const Job& job) {
    const BlockPlan& plan = job.plan;
    const int64_t begin = Shape::RestValue(plan), bytes = Shape::RestBytes(plan);
    const auto decoder =
        Coder::MakeDecoder(Header(job, Shape::RestBlock(plan)), job.limit, job.threshold);
    for (int64_t at = lanes.thread(); at < bytes; at += kThreads) {
      const uint32_t byte = LoadNumber<1>(job.codes + plan.columns * kRun + at, 1);
      for (int part = 0; part < kParts && at + part * bytes < plan.rest; ++part) {
        const uint32_t code = byte >> (part * Coder::kBits) & Shape::kCodeMask;
        uint32_t value = Coder::Value(decoder, code);
        if (decoder.special) value = Coder::Finish(decoder, value);
        PutValue<T, kAdd>(job.values, begin + at + part * bytes, value);
      }
    }
  }
};

}  // namespace jaxccomp::cuda
