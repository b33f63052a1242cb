// The table rows of codecs that use a library found at run time.
#include "codec/library/rows.h"
#include "codec/rows.h"

namespace jaxccomp {

std::span<const CodecInfo> LibraryRows() {
  static const CodecInfo rows[] = {library::kZstdRow, library::kLz4Row, library::kZfpRow};
  return rows;
}

}  // namespace jaxccomp
