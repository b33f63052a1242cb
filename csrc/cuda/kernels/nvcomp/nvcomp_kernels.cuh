// The kernels around nvCOMP. Encoding: BeginEncode lists the chunks for nvCOMP, PlaceChunks computes their offsets in
// the code, PackChunks moves them there, SealCode writes the checksum and the size. Decoding: ParseCode checks the
// sizes, UnpackChunks moves the chunks to nvCOMP's input and computes the checksum, AdmitChunks lists them for nvCOMP,
// JudgeChunks sets the status.
//
// nvCOMP's behaviour is undefined for chunks that it has not made, and the number of chunks of its call is fixed
// before the first byte is read. A chunk that must not or need not be decoded is therefore replaced by the seed: a
// valid chunk, whose values are written to the chunk's slot and ignored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/nvcomp/formats.h"
#include "cuda/kernels/nvcomp/nvcomp_bytes.cuh"

namespace jaxccomp::cuda {

// Values divided into chunks; all except the last have chunk_bytes.
struct Chunked {
  int64_t value_bytes;
  int64_t chunk_bytes;
  int64_t chunks;

  JAXCCOMP_HOST_DEVICE int64_t Bytes(int64_t chunk) const {
    const int64_t left = value_bytes - chunk * chunk_bytes;
    return left < chunk_bytes ? left : chunk_bytes;
  }
  JAXCCOMP_HOST_DEVICE int64_t PayloadAt() const {
    return nvcomp::kHeaderBytes + nvcomp::kEntryBytes * chunks;
  }
};

// The arguments of nvCOMP: arrays with an entry for each chunk.
struct Batch {
  const void** sources;
  size_t* source_bytes;
  void** targets;
  size_t* room;           // size of a target, for decoding
  size_t* target_bytes;   // bytes that nvCOMP has written
  nvcomp::Outcome* outcomes;
};

inline constexpr nvcomp::Outcome kNotRun = -1;

// CTAs of PackChunks and UnpackChunks move chunks in pieces of this size.
inline constexpr int64_t kPieceBytes = 32 << 10;
inline int64_t PiecesOf(const Chunked& cut) { return (cut.chunk_bytes + kPieceBytes - 1) / kPieceBytes; }

struct Piece {
  int64_t chunk;
  int64_t begin;
};
JAXCCOMP_DEVICE Piece PieceOf(int64_t index, int64_t pieces) {
  return {index / pieces, index % pieces * kPieceBytes};
}
JAXCCOMP_DEVICE int64_t PieceBytes(int64_t chunk_bytes, int64_t begin) {
  const int64_t left = chunk_bytes - begin;
  return left < kPieceBytes ? left : kPieceBytes;
}

// One thread per chunk.
struct BeginEncode {
  struct Job {
    Chunked cut;
    const std::byte* values;
    std::byte* slots;
    int64_t slot_bytes;
    Batch batch;
    uint32_t* checksum;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t i = lanes.cta() * kThreads + lanes.thread();
    if (i == 0) *job.checksum = 0;
    if (i >= job.cut.chunks) return;
    job.batch.sources[i] = job.values + i * job.cut.chunk_bytes;
    job.batch.source_bytes[i] = static_cast<size_t>(job.cut.Bytes(i));
    job.batch.targets[i] = job.slots + i * job.slot_bytes;
    job.batch.target_bytes[i] = 0;
    job.batch.outcomes[i] = kNotRun;
  }
};

// One CTA. A chunk is stored if nvCOMP failed to encode it, or did not make it smaller.
struct PlaceChunks {
  struct Job {
    Chunked cut;
    Batch batch;
    int64_t* offsets;   // of each chunk, and the end of the last
    std::byte* code;
    int alignment;      // of the code
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    uint64_t reached = 0;
    for (int64_t begin = 0; begin < job.cut.chunks; begin += kThreads) {
      const int64_t i = begin + lanes.thread();
      const bool ours = i < job.cut.chunks;
      uint64_t bytes = 0;
      if (ours) {
        const auto stored = static_cast<uint64_t>(job.cut.Bytes(i));
        bytes = job.batch.target_bytes[i];
        const bool is_stored =
            job.batch.outcomes[i] != nvcomp::kSuccess || bytes == 0 || bytes >= stored;
        if (is_stored) bytes = stored;
        const auto entry = static_cast<uint32_t>(bytes) | (is_stored ? nvcomp::kStoredBit : 0);
        StoreNumber<4>(job.code + nvcomp::kHeaderBytes + nvcomp::kEntryBytes * i, entry,
                       job.alignment);
      }
      uint64_t before = bytes;
      const uint64_t all = SumBefore(lanes, before);
      if (ours) job.offsets[i] = static_cast<int64_t>(reached + before);
      reached += all;
    }
    if (lanes.thread() == 0) job.offsets[job.cut.chunks] = static_cast<int64_t>(reached);
  }
};

// CTAs loop over pieces, so that a few CTAs can write a code in host memory.
struct PackChunks {
  struct Job {
    Chunked cut;
    int64_t pieces;   // of a chunk
    int64_t ctas;
    const std::byte* values;
    const std::byte* slots;
    int64_t slot_bytes;
    const int64_t* offsets;
    std::byte* code;
    uint32_t* checksum;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    for (int64_t at = lanes.cta(); at < job.cut.chunks * job.pieces; at += job.ctas) {
      RunPiece(lanes, job, PieceOf(at, job.pieces));
    }
  }

 private:
  JAXCCOMP_DEVICE static void RunPiece(Lanes& lanes, const Job& job, const Piece& piece) {
    const auto [chunk, begin] = piece;
    const int64_t offset = job.offsets[chunk], bytes = job.offsets[chunk + 1] - offset;
    if (begin >= bytes) return;
    const bool stored = bytes == job.cut.Bytes(chunk);
    const std::byte* const from = begin + (stored ? job.values + chunk * job.cut.chunk_bytes
                                                  : job.slots + chunk * job.slot_bytes);
    const int64_t count = PieceBytes(bytes, begin);
    AddChecksum(lanes, from, count, chunk, begin / 4, job.checksum);
    CopyBytes(lanes, job.code + job.cut.PayloadAt() + offset + begin, from, count);
  }
};

// One thread.
struct SealCode {
  struct Job {
    Chunked cut;
    uint32_t header;
    const int64_t* offsets;
    const uint32_t* checksum;
    std::byte* code;
    int64_t* size;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    if (lanes.thread() != 0) return;
    if (job.cut.chunks == 0) {
      *job.size = 0;
      return;
    }
    StoreNumber<4>(job.code, job.header, 1);
    StoreNumber<4>(job.code + nvcomp::kChecksumAt, *job.checksum, 1);
    *job.size = job.cut.PayloadAt() + job.offsets[job.cut.chunks];
  }
};

// The state of checks of a code.
struct Verdict {
  uint32_t invalid;
  uint32_t expected;   // the checksum in the code
  uint32_t checksum;   // the computed checksum

  JAXCCOMP_HOST_DEVICE bool admitted() const { return invalid == 0 && expected == checksum; }
};

// One CTA.
struct ParseCode {
  struct Job {
    Chunked cut;
    const std::byte* code;
    int64_t code_bytes;
    int alignment;
    uint32_t header;
    int64_t* offsets;
    Verdict* verdict;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t chunks = job.cut.chunks;
    const bool readable = chunks > 0 && job.code_bytes >= job.cut.PayloadAt();
    bool valid = readable || (chunks == 0 && job.code_bytes == 0);
    uint64_t reached = 0;
    for (int64_t begin = 0; readable && begin < chunks; begin += kThreads) {
      const int64_t i = begin + lanes.thread();
      uint64_t bytes = 0;
      if (i < chunks) {
        const uint32_t entry =
            LoadNumber<4>(job.code + nvcomp::kHeaderBytes + nvcomp::kEntryBytes * i, job.alignment);
        bytes = entry & ~nvcomp::kStoredBit;
        const auto stored = static_cast<uint64_t>(job.cut.Bytes(i));
        const bool is_stored = (entry & nvcomp::kStoredBit) != 0;
        valid &= is_stored ? bytes == stored : bytes > 0 && bytes < stored;
      }
      uint64_t before = bytes;
      const uint64_t all = SumBefore(lanes, before);
      if (i < chunks) job.offsets[i] = static_cast<int64_t>(reached + before);
      reached += all;
    }
    if (lanes.thread() == 0) {
      job.verdict->invalid = 0;
      job.verdict->expected = 0;
      job.verdict->checksum = 0;
      if (readable) {
        job.offsets[chunks] = static_cast<int64_t>(reached);
        valid &= LoadNumber<4>(job.code, 1) == job.header &&
                 static_cast<uint64_t>(job.code_bytes - job.cut.PayloadAt()) == reached;
        job.verdict->expected = LoadNumber<4>(job.code + nvcomp::kChecksumAt, 1);
      }
    }
    lanes.Sync();
    if (!valid) simt::AtomicOr(&job.verdict->invalid, 1);
  }
};

// One CTA per piece. Stored chunks are copied directly to the values.
struct UnpackChunks {
  struct Job {
    Chunked cut;
    int64_t pieces;
    const std::byte* code;
    const int64_t* offsets;
    std::byte* values;
    std::byte* slots;   // of chunk_bytes each
    Verdict* verdict;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    if (job.verdict->invalid != 0) return;
    const auto [chunk, begin] = PieceOf(lanes.cta(), job.pieces);
    const int64_t offset = job.offsets[chunk], bytes = job.offsets[chunk + 1] - offset;
    if (begin >= bytes) return;
    const bool stored = bytes == job.cut.Bytes(chunk);
    std::byte* const to =
        (stored ? job.values : job.slots) + chunk * job.cut.chunk_bytes + begin;
    const int64_t count = PieceBytes(bytes, begin);
    CopyBytes(lanes, to, job.code + job.cut.PayloadAt() + offset + begin, count);
    lanes.Sync();
    AddChecksum(lanes, to, count, chunk, begin / 4, &job.verdict->checksum);
  }
};

// One thread per chunk.
struct AdmitChunks {
  struct Job {
    Chunked cut;
    const int64_t* offsets;
    std::byte* values;
    std::byte* slots;
    const void* seed;
    size_t seed_bytes;
    Batch batch;
    const Verdict* verdict;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t i = lanes.cta() * kThreads + lanes.thread();
    if (i >= job.cut.chunks) return;
    std::byte* const slot = job.slots + i * job.cut.chunk_bytes;
    bool decodes = job.verdict->admitted();
    size_t bytes = job.seed_bytes;
    if (decodes) {
      const int64_t there = job.offsets[i + 1] - job.offsets[i];
      decodes = there != job.cut.Bytes(i);
      if (decodes) bytes = static_cast<size_t>(there);
    }
    job.batch.sources[i] = decodes ? slot : job.seed;
    job.batch.source_bytes[i] = bytes;
    job.batch.targets[i] = decodes ? job.values + i * job.cut.chunk_bytes : slot;
    job.batch.room[i] = static_cast<size_t>(decodes ? job.cut.Bytes(i) : job.cut.chunk_bytes);
    job.batch.target_bytes[i] = 0;
    job.batch.outcomes[i] = kNotRun;
  }
};

// One CTA.
struct JudgeChunks {
  struct Job {
    Chunked cut;
    const int64_t* offsets;
    Batch batch;
    Verdict* verdict;
    int32_t* status;
  };
  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const bool admitted = job.verdict->admitted();
    bool valid = admitted;
    for (int64_t i = lanes.thread(); admitted && i < job.cut.chunks; i += kThreads) {
      const int64_t bytes = job.cut.Bytes(i);
      if (job.offsets[i + 1] - job.offsets[i] == bytes) continue;   // stored
      valid &= job.batch.outcomes[i] == nvcomp::kSuccess &&
               job.batch.target_bytes[i] == static_cast<size_t>(bytes);
    }
    lanes.Sync();   // all threads have read the verdict
    if (!valid) simt::AtomicOr(&job.verdict->invalid, 1);
    lanes.Sync();
    if (lanes.thread() == 0) *job.status = job.verdict->invalid != 0;
  }
};

}  // namespace jaxccomp::cuda
