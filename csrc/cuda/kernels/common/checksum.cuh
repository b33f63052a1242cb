// The bodies of the kernels that make CRC-32C.
//
// A message is a polynomial over GF(2), its first bit the highest power, and the checksum is what it
// leaves modulo P. In little-endian words bit 0 is the highest power too, so words are polynomials as
// they are. A chunk of a message is read as rows of 256 words, and each thread divides one column:
// words of a column are y = x^(32 * 256) apart, and since squaring is linear, P(x) = 0 implies
// P(x^(2^k)) = 0. So P(y) = 0 as well: the division is by P again, with whole words as coefficients,
// some XORs a word and no tables. What is left of a chunk, however long, is 32 rows, which are read
// as rows of 32 words and divided once more. Of the 32 rows that this leaves each thread takes four
// words, and threads are brought together pair by pair.
//
// Divisions multiply by y^32 on the way; it is taken back at the end, with the power of x that all
// multiply by there (x has the order 2^31 - 1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/memory.cuh"

namespace jaxccomp::cuda {

inline constexpr uint32_t kCrcPolynomial = 0x82f63b78;   // bit-reversed, as all polynomials here
inline constexpr uint32_t kCrcOne = 0x80000000;
inline constexpr int64_t kCrcOrder = 0x7fffffff;

// ---- Polynomials modulo P ----

JAXCCOMP_CONSTEXPR uint32_t CrcTimes(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  JAXCCOMP_UNROLL
  for (int i = 0; i < 32; ++i) {
    product ^= b & (0u - (a >> 31));
    a <<= 1;
    b = b >> 1 ^ (kCrcPolynomial & (0u - (b & 1)));
  }
  return product;
}

// x^exponent, also of negative ones.
JAXCCOMP_CONSTEXPR uint32_t CrcPower(int64_t exponent) {
  uint32_t power = kCrcOne, square = kCrcOne >> 1;
  exponent = (exponent % kCrcOrder + kCrcOrder) % kCrcOrder;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power = CrcTimes(power, square);
    square = CrcTimes(square, square);
  }
  return power;
}

// ---- Division, of columns of words ----

inline constexpr int kCrcRows = 32;   // of a round, and of what is left

struct CrcDivision {
  uint32_t quotient[kCrcRows] = {};   // its last words

  // The next rows of the column.
  JAXCCOMP_HOST_DEVICE void Take(const uint32_t (&rows)[kCrcRows]) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kCrcRows; ++i) {
      uint32_t word = rows[i];
      JAXCCOMP_UNROLL
      for (int back = 1; back <= 32; ++back) {
        if ((kCrcPolynomial >> (back - 1) & 1) != 0) word ^= quotient[(i - back) & 31];
      }
      quotient[i] = word;
    }
  }
  // What is left of the column times y^32.
  JAXCCOMP_HOST_DEVICE void Rest(uint32_t (&rows)[kCrcRows]) const {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kCrcRows; ++i) {
      uint32_t word = 0;
      JAXCCOMP_UNROLL
      for (int back = 1; back <= 32; ++back) {
        if ((kCrcPolynomial >> (back - 1) & 1) != 0 && back > i) word ^= quotient[(i - back) & 31];
      }
      rows[i] = word;
    }
  }
};

// ---- Chunks ----

inline constexpr int64_t kCrcRoundBytes = int64_t{kCrcRows} * kThreads * 4;
inline constexpr int64_t kCrcMostChunks = 1024;

// The powers of x that a chunk's two divisions have multiplied by.
inline constexpr int64_t kCrcShift = 32 * int64_t{kCrcRows} * (kThreads + kWarp);

// The message in whole words, with zeros before and after it. Its last word ends the last chunk, and
// zeros before the first one fill the first chunk: they do not count.
struct ChecksumJob {
  const std::byte* data;
  int64_t bytes;
  const std::byte* grid;   // where the first chunk begins: at `data` or before
  int64_t rounds;          // of a chunk
  uint32_t* partial;       // of each chunk
};

// Each of the 256 threads has a part of a message, `apart` powers of x from one to the next. Thread 0
// gets the whole. `powers` are x^(apart * 2^k).
JAXCCOMP_DEVICE uint32_t CrcJoin(Lanes& lanes, uint32_t part, const uint32_t (&powers)[8],
                                 uint32_t* shared) {
  JAXCCOMP_UNROLL
  for (int k = 0; k < 5; ++k) {
    const uint32_t next = lanes.Xor(part, 1 << k);
    part = CrcTimes(part, powers[k]) ^ next;
  }
  if (lanes.thread() % kWarp == 0) shared[lanes.thread() / kWarp] = part;
  lanes.Sync();
  if (lanes.thread() >= kWarp) return 0;
  part = lanes.thread() < kThreads / kWarp ? shared[lanes.thread()] : 0;
  JAXCCOMP_UNROLL
  for (int k = 5; k < 8; ++k) {
    const uint32_t next = lanes.Xor(part, 1 << (k - 5));
    part = CrcTimes(part, powers[k]) ^ next;
  }
  return part;
}

struct ChecksumChunk {
  using Job = ChecksumJob;
  static constexpr int kSharedWords = kCrcRows * kThreads;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    uint32_t* const shared = lanes.shared();
    CrcDivision division;
    uint32_t rows[kCrcRows];
    const std::byte* at = job.grid + lanes.cta() * job.rounds * kCrcRoundBytes;
    JAXCCOMP_NO_UNROLL
    for (int64_t round = 0; round < job.rounds; ++round, at += kCrcRoundBytes) {
      const std::byte* const word = at + lanes.thread() * 4;
      if (at >= job.data && at + kCrcRoundBytes <= job.data + job.bytes) {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kCrcRows; ++i) rows[i] = LoadOne<uint32_t>(word + i * 4 * kThreads);
      } else {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kCrcRows; ++i) rows[i] = LoadEdge(job, word + i * 4 * kThreads);
      }
      division.Take(rows);
    }
    division.Rest(rows);
    JAXCCOMP_UNROLL
    for (int i = 0; i < kCrcRows; ++i) shared[i * kThreads + lanes.thread()] = rows[i];
    lanes.Sync();

    if (lanes.thread() < kWarp) {
      CrcDivision again;
      JAXCCOMP_NO_UNROLL
      for (int first = 0; first < kCrcRows * kThreads; first += kCrcRows * kWarp) {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kCrcRows; ++i) {
          rows[i] = shared[first + i * kWarp + lanes.thread()];
        }
        again.Take(rows);
      }
      again.Rest(rows);
      JAXCCOMP_UNROLL
      for (int i = 0; i < kCrcRows; ++i) shared[i * kWarp + lanes.thread()] = rows[i];
    }
    lanes.Sync();

    // Four words in a row for each thread.
    constexpr int kWords = kCrcRows * kWarp / kThreads;
    constexpr uint32_t kWord = CrcPower(32);
    uint32_t part = 0;
    JAXCCOMP_NO_UNROLL
    for (int i = 0; i < kWords; ++i) {
      part = CrcTimes(part, kWord) ^ shared[lanes.thread() * kWords + i];
    }
    lanes.Sync();
    constexpr int64_t kApart = 32 * kWords;
    constexpr uint32_t kPowers[8] = {CrcPower(kApart),      CrcPower(2 * kApart),
                                     CrcPower(4 * kApart),  CrcPower(8 * kApart),
                                     CrcPower(16 * kApart), CrcPower(32 * kApart),
                                     CrcPower(64 * kApart), CrcPower(128 * kApart)};
    const uint32_t whole = CrcJoin(lanes, part, kPowers, shared);
    if (lanes.thread() == 0) job.partial[lanes.cta()] = whole;
  }

 private:
  // A word that may lie before the message, after it, or across its ends.
  JAXCCOMP_DEVICE static uint32_t LoadEdge(const Job& job, const std::byte* at) {
    const int64_t first = at - job.data;
    if (first >= 0 && first + 4 <= job.bytes) return LoadOne<uint32_t>(at);
    uint32_t word = 0;
    JAXCCOMP_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (first + i < 0 || first + i >= job.bytes) continue;
      word |= static_cast<uint32_t>(LoadOne<uint8_t>(at + i)) << (8 * i);
    }
    return word;
  }
};

struct JoinChecksumsJob {
  const uint32_t* partial;
  int64_t chunks;
  int64_t each;          // chunks of a thread: the last threads have them
  uint32_t chunk_power;  // x^(bits of a chunk)
  uint32_t powers[8];    // x^(bits of a thread's chunks * 2^k)
  uint32_t scale;        // what the message is still to be multiplied by
  uint32_t constant;     // what is added to that
  uint32_t* checksum;
};

// One CTA.
struct JoinChecksums {
  using Job = JoinChecksumsJob;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t first = job.chunks - (kThreads - lanes.thread()) * job.each;
    uint32_t part = 0;
    JAXCCOMP_NO_UNROLL
    for (int64_t i = 0; i < job.each; ++i) {
      part = CrcTimes(part, job.chunk_power) ^ (first + i < 0 ? 0 : job.partial[first + i]);
    }
    const uint32_t whole = CrcJoin(lanes, part, job.powers, lanes.shared());
    if (lanes.thread() > 0) return;
    const uint32_t checksum = CrcTimes(whole, job.scale) ^ job.constant;
    StoreNumber<4>(reinterpret_cast<std::byte*>(job.checksum), checksum,
                   reinterpret_cast<uintptr_t>(job.checksum) % 4 == 0 ? 4 : 1);
  }
};

// ---- Calls ----

inline int64_t ChecksumChunks(int64_t bytes) {
  // What comes before an aligned address, and after one, is at most a word each.
  const int64_t rounds = CeilDiv(bytes + 8, kCrcRoundBytes);
  return bytes <= 0 ? 0 : CeilDiv(rounds, CeilDiv(rounds, kCrcMostChunks));
}

template <typename Launch>
Status DispatchChecksum(const void* data, int64_t bytes, uint32_t* checksum, void* workspace,
                        Launch launch) {
  if (bytes < 0 || Alignment(workspace) < 4) {
    return {Code::kInvalidArgument,
            "a checksum on the GPU of " + std::to_string(bytes) +
                " bytes: there must be 0 or more, and the workspace aligned to 4 bytes"};
  }
  auto* const partial = static_cast<uint32_t*>(workspace);
  const auto* const from = static_cast<const std::byte*>(data);
  const int64_t chunks = ChecksumChunks(bytes);
  int64_t chunk_bytes = 0, zero_bytes = 0;
  if (chunks > 0) {
    zero_bytes = (4 - static_cast<int64_t>(reinterpret_cast<uintptr_t>(from + bytes) % 4)) % 4;
    const int64_t rounds = CeilDiv(CeilDiv(bytes + 8, kCrcRoundBytes), chunks);
    chunk_bytes = rounds * kCrcRoundBytes;
    const ChecksumJob job = {from, bytes, from + (bytes + zero_bytes - chunks * chunk_bytes), rounds,
                             partial};
    Status status = launch(TypeTag<ChecksumChunk>{}, job, chunks);
    if (!status.ok()) return status;
  }
  JoinChecksumsJob join = {};
  join.partial = partial;
  join.chunks = chunks;
  join.each = CeilDiv(chunks, kThreads);
  join.chunk_power = CrcPower(chunk_bytes % kCrcOrder * 8);
  for (int k = 0; k < 8; ++k) {
    join.powers[k] = CrcPower((chunk_bytes * join.each % kCrcOrder * 8) << k);
  }
  join.scale = CrcPower(32 - 8 * zero_bytes - kCrcShift);
  join.constant = ~CrcTimes(0xffffffff, CrcPower(bytes % kCrcOrder * 8));
  join.checksum = checksum;
  return launch(TypeTag<JoinChecksums>{}, join, 1);
}

}  // namespace jaxccomp::cuda
