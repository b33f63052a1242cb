#include "execution/operation.h"

#include <utility>

namespace jaxccomp {

void Operation::Renew() {
  Operation fresh;
  const auto keep = [](auto& to, auto& from) {
    from.clear();
    to = std::move(from);
  };
  keep(fresh.open_deps, open_deps);
  keep(fresh.waiting, waiting);
  keep(fresh.transfers, transfers);
  keep(fresh.scratch, scratch);
  keep(fresh.code, code);
  keep(fresh.started, started);
  keep(fresh.liveness.present, liveness.present);
  keep(fresh.liveness.heard, liveness.heard);
  arrivals.Clear();
  fresh.arrivals = std::move(arrivals);
  fresh.budget = MemoryBudget::Renewed(std::move(budget));
  *this = std::move(fresh);
}

}  // namespace jaxccomp
