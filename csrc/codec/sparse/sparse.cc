// The table rows of codecs that send a part of the values; the others decode to zero.
#include "codec/rows.h"
#include "codec/sparse/sparse_codec.h"

namespace jaxccomp {

std::span<const CodecInfo> SparseRows() {
  static const CodecInfo rows[] = {sparse::kTopKRow, sparse::kDgcRow, sparse::kRandomKRow};
  return rows;
}

}  // namespace jaxccomp
