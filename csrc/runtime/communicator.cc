#include "runtime/communicator.h"

namespace jaxccomp {

std::string Communicator::MemberName(int member) const {
  if (member < 0 || member >= size()) return "rank " + std::to_string(member);
  if (devices.empty()) return "rank " + std::to_string(member) + " of '" + name + "'";
  return "device " + std::to_string(devices[member]) + " (process " +
         std::to_string(processes[member]) + ")";
}

}  // namespace jaxccomp
