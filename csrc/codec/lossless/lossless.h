// The codec "lossless": hierarchical bit planes over the byte planes of a chunk.
//
// Words are cut into byte planes such that a float's exponent has one of its own. A plane is sent
// raw, dropped where it is constant, or coded: the three commonest bytes get a code of two bits
// (or the commonest of one), the last code is an escape; the escaped bytes are compacted and coded
// the same way again, up to four levels in all, and what is left is sent as it is. Coding and
// decoding are compares, compressions and expansions of vectors: there is no table walk and no
// dependency from bit to bit. docs/wire_format.md has the format.
//
// Prior art: trees of bit planes with compaction, PivCo-Huffman (arXiv 2606.05765); that only the
// exponents of weights compress, ZipNN (arXiv 2411.05239) and DFloat11 (arXiv 2504.11651).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "codec/codec.h"

namespace jaxccomp {

const Codec& LosslessCodec();

// Scratch memory for one call at a time; about 190 KiB, of which a call touches what it needs.
class LosslessWorkspace {
 public:
  LosslessWorkspace();
  ~LosslessWorkspace();
  struct Memory;
  Memory& memory() { return *memory_; }

 private:
  std::unique_ptr<Memory> memory_;
};

// Codec::Encode and Codec::Decode with a reference and the caller's workspace. `ref` is null, or
// `count` values that both sides hold, such as the parameters before an update: what travels is
// then src XOR ref, which is short where they differ little. Decoding needs the same `ref`.
// Nothing is allocated. `dst` may equal `ref` in LosslessDecode.
Result<int64_t> LosslessEncode(DType dtype, const void* src, const void* ref, int64_t count,
                               std::span<std::byte> dst, LosslessWorkspace& workspace);
Status LosslessDecode(DType dtype, std::span<const std::byte> src, const void* ref, void* dst,
                      int64_t count, LosslessWorkspace& workspace);

}  // namespace jaxccomp
