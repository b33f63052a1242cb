// Derives the sizes that a schedule depends on from an operation and its tensors.
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
  int scratch_block = 0;   // scratch memory has the layout of this block of the input
  int32_t first_loss = 0;  // with feedback: the first residual among the results, laid out as input
  // The dtypes of the operands by tensor, if the residuals of the call before are wider. `input` is then the layout of
  // the residuals.
  std::vector<DType> operand_dtypes;

  // Calls f(address, part) for the values in [begin, end) of scratch memory.
  template <typename F>
  void ResolveScratch(int64_t begin, int64_t end, F&& f) const {
    input.ForEach(scratch_block, begin, end, f);
  }
};

// Rows of each block of a v-variant, by side. A side that is all this rank's own has one block.
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
