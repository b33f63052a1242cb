#include "matching/communicator.h"

namespace jaxccomp {

Endpoint* Communicator::Find(int member) const {
  for (const auto& endpoint : endpoints) {
    if (endpoint->member == member) return endpoint.get();
  }
  return nullptr;
}

std::string Communicator::MemberName(int member) const {
  if (member < 0 || member >= size()) return "rank " + std::to_string(member);
  if (devices.empty()) return "rank " + std::to_string(member) + " of '" + name + "'";
  return "device " + std::to_string(devices[member]) + " (process " +
         std::to_string(processes[member]) + ")";
}

Status NoTransportTo(const Communicator& comm, int member) {
  return {Code::kUnavailable, "no transport leads to " + comm.MemberName(member) +
                                  ", which is in another process: neither MPI nor UCX is in use"};
}

}  // namespace jaxccomp
