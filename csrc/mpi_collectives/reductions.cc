#include "mpi_collectives/reductions.h"

namespace jaxccomp {
namespace {

template <DType dtype, ReduceOp op>
void Apply(void* in, void* inout, int* count, void*) {
  const void* const sources[] = {in, inout};
  Reduce(dtype, op, inout, sources, *count);
}

template <DType dtype>
MpiReduction MinOrMax(ReduceOp op) {
  if (op == ReduceOp::kMin) return &Apply<dtype, ReduceOp::kMin>;
  return op == ReduceOp::kMax ? &Apply<dtype, ReduceOp::kMax> : nullptr;
}

template <DType dtype>
MpiReduction OfHalves(ReduceOp op) {
  if (op == ReduceOp::kSum) return &Apply<dtype, ReduceOp::kSum>;
  return op == ReduceOp::kProd ? &Apply<dtype, ReduceOp::kProd> : MinOrMax<dtype>(op);
}

}  // namespace

MpiReduction FindReduction(DType dtype, ReduceOp op) {
  if (dtype == DType::kFloat16) return OfHalves<DType::kFloat16>(op);
  if (dtype == DType::kBFloat16) return OfHalves<DType::kBFloat16>(op);
  if (dtype == DType::kFloat32) return MinOrMax<DType::kFloat32>(op);
  return dtype == DType::kFloat64 ? MinOrMax<DType::kFloat64>(op) : nullptr;
}

}  // namespace jaxccomp
