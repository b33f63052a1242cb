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
  ForEach(block, begin, end, [parts](int64_t, const TensorPart& part) { parts->push_back(part); });
}

}  // namespace jaxccomp
