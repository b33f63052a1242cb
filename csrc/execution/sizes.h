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

// The layouts of an operation's operands and results.
struct Sides {
  Layout input, output;
  int scratch_block = 0;   // scratch memory has the layout of this block of the input
  int32_t first_loss = 0;  // with feedback: index of the first residual among the results; residuals are laid out as
                           // `input`
  // The operands' dtypes by tensor, if the residuals of the previous call have a wider dtype; then `input` is the
  // layout of the residuals. Otherwise empty.
  std::vector<DType> operand_dtypes;

  // Calls f(address, part) for the values in [begin, end) of scratch memory.
  template <typename F>
  void ResolveScratch(int64_t begin, int64_t end, F&& f) const {
    input.ForEach(scratch_block, begin, end, f);
  }
};

// Rows of each block of a v-variant's operands and results. Operands or results that are only this rank's block have
// one entry.
struct BlockRows {
  std::vector<int64_t> input, output;
};
Result<BlockRows> RowsOf(const OpSpec& spec, int rank, int ranks);

// The tensors whose sizes and dtypes a reduction uses: the residuals of the previous call, to which the operands are
// added, or the operands if there are no residuals.
const std::vector<Tensor>& ValuesOf(const OpSpec& spec, const Call& call);

Result<Sides> MakeSides(const OpSpec& spec, const Endpoint& endpoint, const Call& call);

Result<Problem> MakeProblem(const OpSpec& spec, const Endpoint& endpoint, const Call& call,
                            const Sides& sides, const Options& options);

}  // namespace jaxccomp
