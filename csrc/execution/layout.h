// Maps addresses in a block (schedule.h) to tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "collective/patterns/split.h"
#include "collective/schedule.h"
#include "common/dtype.h"
#include "matching/call.h"

namespace jaxccomp {

// A contiguous part of one tensor.
struct TensorPart {
  int32_t tensor = 0;
  DType dtype = DType::kFloat32;
  int64_t offset = 0;   // bytes from the tensor's start
  int64_t bytes = 0;
  int64_t offset_in_block = 0;   // bytes from the start of the tensor's rows in the block
};

// The layout of an operation's operands, or of its results. Each tensor is divided into blocks of whole rows. Block j
// of the layout is the sequence of block j of every tensor, each at a multiple of kBlockAlign.
class Layout {
 public:
  // The layout with one block, which has all rows of each tensor.
  static Layout Whole(const std::vector<Tensor>& tensors);
  // The layout in which block j has the next rows_per_block[j] rows of each tensor.
  static Layout Rows(const std::vector<Tensor>& tensors, std::vector<int64_t> rows_per_block);

  int64_t BlockBytes(int block) const;
  // Appends the parts at the addresses [begin, end) of the block, in order. Alignment gaps between tensors belong to no
  // part.
  void Resolve(int block, int64_t begin, int64_t end, std::vector<TensorPart>* parts) const;
  // Calls f(address, part) for the same parts; `address`: where the part begins in the block.
  template <typename F>
  void ForEach(int block, int64_t begin, int64_t end, F&& f) const {
    int64_t start = 0;
    for (size_t i = 0; i < tensors_.size() && start < end; ++i) {
      const Entry& t = tensors_[i];
      const int64_t stop = start + t.row_bytes * rows_[block];
      const int64_t from = std::max(begin, start);
      const int64_t to = std::min(end, stop);
      if (from < to) {
        f(from, TensorPart{static_cast<int32_t>(i), t.dtype, first_row_[block] * t.row_bytes + from - start,
                           to - from, from - start});
      }
      start = AlignUp(stop);
    }
  }

 private:
  struct Entry {
    DType dtype;
    int64_t row_bytes;
  };
  std::vector<Entry> tensors_;
  std::vector<int64_t> rows_;         // per block
  std::vector<int64_t> first_row_;    // per block
};

}  // namespace jaxccomp
