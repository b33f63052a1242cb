#include "transport/mpi/mpi_world.h"

#include <algorithm>
#include <string>

namespace jaxccomp {

bool MpiWorld::IsRemote(int peer) const {
  const std::vector<int>& hosts = config.hosts;
  const auto known = std::min(hosts.size(), static_cast<size_t>(processes));
  const auto other = static_cast<size_t>(peer), own = static_cast<size_t>(process);
  return config.all_remote || (other < known && own < known && hosts[other] != hosts[own]);
}

void MpiWorld::MarkFailed(int peer, const Status& why) {
  if (HasFailed(peer)) return;
  failed[static_cast<size_t>(peer)] = true;
  on_lost(peer, why);
}

Status MpiWorld::Error(const char* call, int peer, int error) const {
  std::string text = std::string(call) + " failed in process " + std::to_string(process);
  if (peer >= 0) text += ", peer process " + std::to_string(peer);
  return {Code::kUnavailable, text + ": " + mpi->ErrorText(error)};
}

bool MpiWorld::EndReceive(MpiHandle* request, Clock::time_point deadline) const {
  if (mpi->Finalized()) return true;
  if (mpi->Cancel(request) != 0) return false;
  int completed = 0;
  do {
    if (mpi->Test(request, &completed) != 0) return false;
  } while (completed == 0 && Clock::now() < deadline);
  return completed != 0;
}

}  // namespace jaxccomp
