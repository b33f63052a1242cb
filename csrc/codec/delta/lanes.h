// Changes where these are many: bits, each with a class that says how likely it is, by rANS states side
// by side (Duda 2013, arXiv 1311.2540).
//
// One pass of bits says which values have changed, one in which directions, and then one after the other which
// lengths' symbols are greater than 0, 1, 2, ..., of those that were greater in the last pass. Where lengths
// are great, one more pass tells on which side of a pivot of its class a symbol is, and both sides go on from
// there. So one loop codes everything. Low bits of lengths follow as they are.
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

// Holds scratch memory, for one block at a time.
class Lanes {
 public:
  // Cuts what has changed into passes. The map and `classes` are of all values, `counts` those of the
  // classes of changes. All stay as they are until Encode.
  void Prepare(const Kernels& kernels, const Model& model, std::span<const uint64_t> map,
               const uint8_t* classes, int64_t values, const Changes& changes,
               const ClassCounts& counts, int64_t count);
  // Returns the end; `at` has room for MostBytes.
  int64_t MostBytes() const;
  std::byte* Encode(const Kernels& kernels, std::byte* at);

  // The inverse: sets the map and the changes, and returns how many these are; -1 where that is no encoding.
  // kPad bytes behind `from` can be read.
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
    std::vector<uint8_t> ones;      // the classes of those whose bit is set
    std::vector<uint8_t> symbols;   // of those; when decoding, of all
  };
  static constexpr int kMostDepth = 15;
  // Passes of symbols that go on in one direction.
  struct Ladder {
    std::array<Pass, kMostDepth> passes;
    int depth = 0;
    const uint8_t* rest = nullptr;   // symbols that reach beyond
    int64_t rest_count = 0;
    std::vector<uint8_t> own_rest;
  };

  void CutByPivots(const Kernels& kernels, const uint8_t* classes, const ClassCounts& counts,
                   int64_t count);
  void Cut(const Kernels& kernels, const uint8_t* symbols, const uint8_t* classes,
           const ClassCounts& counts, int64_t count, Ladder* ladder);
  void SetDownBits(int64_t count);
  void ListPasses();
  int64_t MostStreamBytes() const;
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
