// From an operation and its tensors to the sizes that its schedule depends on.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "common/options.h"
#include "execution/layout.h"
#include "matching/call.h"
#include "matching/communicator.h"

namespace jaxccomp {

struct Sides {
  Layout input, output;
  int scratch_block = 0;   // of the input: the block that values in scratch memory belong to
  int32_t first_loss = 0;  // with feedback: the first of the results that are Residual, laid out as input
  // By tensor, where residuals of the call before are wider: the dtypes of the operands. `input` is the
  // layout of the residuals then.
  std::vector<DType> operand_dtypes;

  // Calls f(dtype, address, bytes) for the values in [begin, end) of that block.
  template <typename F>
  void ResolveScratch(int64_t begin, int64_t end, F&& f) const {
    input.ForEach(scratch_block, begin, end, f);
  }
};

// Rows of the blocks of a v-variant, on each side; one block where all of the side is this rank's own.
struct BlockRows {
  std::vector<int64_t> input, output;
};
Result<BlockRows> RowsOf(const OpSpec& spec, int rank, int ranks);

// Tensors of the sizes and dtypes that are reduced: the residuals of the call before, if there are any, to which
// the operands are added.
const std::vector<Tensor>& ValuesOf(const OpSpec& spec, const Call& call);

Result<Sides> MakeSides(const OpSpec& spec, const Endpoint& endpoint, const Call& call);

Result<Problem> MakeProblem(const OpSpec& spec, const Endpoint& endpoint, const Call& call,
                            const Sides& sides, const Options& options);

}  // namespace jaxccomp
