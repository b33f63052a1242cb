// Codes many changes as bits, with a probability by class, in interleaved rANS states (Duda 2013, arXiv
// 1311.2540).
//
// The first pass of bits codes which values changed, the second the directions of the changes. Each following pass i
// codes which lengths' symbols are greater than i, among the symbols greater than i - 1. For long steps, a pass
// before these splits the symbols at a pivot of their class; each side then has its own passes, which start at the
// pivot. So one loop codes all passes. The low bits of lengths follow verbatim.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/delta/bit_io.h"
#include "codec/delta/format.h"
#include "codec/delta/kernels.h"
#include "codec/delta/model.h"

namespace jaxccomp::delta {

// Codes one block at a time; keeps its scratch memory.
class Lanes {
 public:
  // Cuts `count` changes into passes. The map and `classes` are of all values; `counts` has the number of changes
  // in each class. The caller leaves all arguments unmodified until Encode.
  void Prepare(const Kernels& kernels, const Model& model, std::span<const uint64_t> map,
               const uint8_t* classes, int64_t values, const Changes& changes,
               const ClassCounts& counts, int64_t count);
  // Encode returns the end; `at` has room for MaxBytes.
  int64_t MaxBytes() const;
  std::byte* Encode(const Kernels& kernels, std::byte* at);

  // The inverse: sets the map and the changes. Returns the number of changes; -1 if `from` is invalid. kPad bytes
  // after `from` must be readable.
  int64_t Decode(const Kernels& kernels, const Model& model, std::span<const std::byte> from,
                 const uint8_t* classes, int64_t values, std::span<uint64_t> map,
                 const Changes& changes);

 private:
  struct Pass {
    void Reserve(int64_t entries);
    const uint64_t* bits = nullptr;
    const uint8_t* classes = nullptr;
    int64_t count = 0, one_count = 0;
    ClassCounts counts{}, one_counts{};
    LaneModel model;
    std::vector<uint64_t> own_bits;
    std::vector<uint8_t> ones;      // classes of the entries whose bit is set
    std::vector<uint8_t> symbols;   // encoder: symbols of these entries; decoder: of all entries
  };
  static constexpr int kMaxDepth = 15;
  // The passes over symbols on one side of the pivots.
  struct Ladder {
    std::array<Pass, kMaxDepth> passes;
    int depth = 0;
    const uint8_t* rest = nullptr;   // symbols beyond the last pass
    int64_t rest_count = 0;
    std::vector<uint8_t> own_rest;
  };

  void CutByPivots(const Kernels& kernels, const uint8_t* classes, const ClassCounts& counts,
                   int64_t count);
  void Cut(const Kernels& kernels, const uint8_t* symbols, const uint8_t* classes,
           const ClassCounts& counts, int64_t count, Ladder* ladder);
  void SetDownBits(int64_t count);
  void ListPasses();
  int64_t MaxStreamBytes() const;
  class Stream;
  bool ReadHeader(const Model& model, std::span<const std::byte>* from);
  static const uint8_t* SymbolsOf(const Kernels& kernels, Ladder* ladder, BitReader* raw);

  Pass map_, away_, side_;
  Ladder up_, down_;
  std::vector<Pass*> passes_;
  bool has_pivots_ = false;
  int lanes_ = kFewLanes;
  std::array<uint8_t, kClasses> pivots_{};
  std::vector<uint8_t> symbols_, differences_, up_symbols_, down_symbols_, down_classes_;
  std::vector<uint64_t> down_bits_;
  Changes changes_;
  int64_t count_ = 0;
};

}  // namespace jaxccomp::delta
