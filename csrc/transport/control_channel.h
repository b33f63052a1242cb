// Interface that sends control messages of a transport: a header and, if it is small, the payload. Keeps the credit of
// small messages. Shared by the MPI and UCX transports.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "transport/credit.h"
#include "transport/transport.h"

namespace jaxccomp {

inline Status FailedPeerError(int process) {
  return {Code::kUnavailable, "process " + std::to_string(process) + " has been lost"};
}

class ControlChannel {
 public:
  explicit ControlChannel(int processes) : small_credit_(static_cast<size_t>(processes)) {}

  // The caller may reuse `payload` when Send returns.
  virtual Status Send(int process, const Header& header, std::span<const Piece> payload) = 0;
  virtual bool HasFailed(int process) const = 0;
  // Marks the process lost, and fails the transfers with it that the transport can end. Later calls do nothing.
  virtual void MarkFailed(int process, const Status& why) = 0;

  // Sends a message without payload to the peer's transport. If the send fails, marks the process lost.
  void SendControl(int process, MessageType type, uint32_t number, int64_t bytes) {
    Header header;
    header.type = type;
    header.payload_tag = number;
    header.total_bytes = bytes;
    Status status = Send(process, header, {});
    if (!status.ok()) MarkFailed(process, status);
  }

  int processes() const { return static_cast<int>(small_credit_.size()); }
  // Credit of small messages to and from that process.
  Credit& SmallCredit(int process) { return small_credit_[static_cast<size_t>(process)]; }
  // Sets the limit of small-message credit for each process.
  void GrantSmall(Credit::Amount limit) {
    small_limit_ = limit;
    for (Credit& credit : small_credit_) credit.Grant(limit);
  }

 protected:
  ~ControlChannel() = default;

  // Adds a process.
  void AddSmallCredit() { small_credit_.emplace_back().Grant(small_limit_); }

  // Puts the credit that is owed to the process into the header of a message to it.
  void ReturnSmallCredit(int process, Header* header) {
    const Credit::Amount returned = SmallCredit(process).TakeOwed();
    header->returned_bytes = static_cast<int32_t>(returned.bytes);
    header->returned_messages = static_cast<int32_t>(returned.messages);
  }

 private:
  std::vector<Credit> small_credit_;   // by process
  Credit::Amount small_limit_;
};

}  // namespace jaxccomp
