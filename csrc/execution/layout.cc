#include "execution/layout.h"

#include <algorithm>

namespace jaxccomp {
Layout Layout::Whole(const std::vector<Tensor>& tensors) {
  Layout layout;
  for (const Tensor& t : tensors) layout.tensors_.push_back({t.dtype, t.bytes});
  layout.rows_ = {1};
  layout.first_row_ = {0};
  return layout;
}

Layout Layout::Rows(const std::vector<Tensor>& tensors, std::vector<int64_t> rows_per_block) {
  Layout layout;
  for (const Tensor& t : tensors) {
    layout.tensors_.push_back({t.dtype, t.rows > 0 ? t.bytes / t.rows : 0});
  }
  int64_t row = 0;
  for (int64_t rows : rows_per_block) {
    layout.first_row_.push_back(row);
    row += rows;
  }
  layout.rows_ = std::move(rows_per_block);
  return layout;
}

int64_t Layout::BlockBytes(int block) const {
  int64_t end = 0;
  for (const Entry& t : tensors_) end = AlignUp(end) + t.row_bytes * rows_[block];
  return end;
}

void Layout::Resolve(int block, int64_t begin, int64_t end, std::vector<TensorPart>* parts) const {
  int64_t start = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Entry& t = tensors_[i];
    const int64_t stop = start + t.row_bytes * rows_[block];
    const int64_t from = std::max(begin, start);
    const int64_t to = std::min(end, stop);
    if (from < to) {
      parts->push_back({static_cast<int32_t>(i), t.dtype,
                        first_row_[block] * t.row_bytes + from - start, to - from});
    }
    start = AlignUp(stop);
    if (start >= end) break;
  }
}

}  // namespace jaxccomp
