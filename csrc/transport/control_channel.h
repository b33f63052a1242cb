// How a transport's parts send its control messages: a header, and at most what comes along with it. Shared
// by transports between processes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "transport/credit.h"
#include "transport/transport.h"

namespace jaxccomp {

inline Status LostError(int process) {
  return {Code::kUnavailable, "process " + std::to_string(process) + " has been lost"};
}

class ControlChannel {
 public:
  explicit ControlChannel(int processes) : small_credit_(static_cast<size_t>(processes)) {}

  // The payload is free at once.
  virtual Status Send(int process, const Header& header, std::span<const Piece> payload) = 0;
  virtual bool IsLost(int process) const = 0;
  // Nothing goes to or comes from that process any more: whoever waits for it is told, once.
  virtual void Lose(int process, const Status& why) = 0;

  // A message of the transport's own. A process that it cannot be sent to is lost.
  void Tell(int process, MessageType type, uint32_t number, int64_t bytes) {
    Header header;
    header.type = type;
    header.payload_tag = number;
    header.total_bytes = bytes;
    Status status = Send(process, header, {});
    if (!status.ok()) Lose(process, status);
  }

  int processes() const { return static_cast<int>(small_credit_.size()); }
  // Of small messages, from and to that process.
  Credit& SmallCredit(int process) { return small_credit_[static_cast<size_t>(process)]; }
  void GrantSmall(Credit::Amount limit) {
    small_limit_ = limit;
    for (Credit& credit : small_credit_) credit.Grant(limit);
  }

 protected:
  ~ControlChannel() = default;

  // One more process than before.
  void AddSmallCredit() { small_credit_.emplace_back().Grant(small_limit_); }

  // Of a message to that process: gives back the credit that is owed.
  void SettleSmall(int process, Header* header) {
    const Credit::Amount returned = SmallCredit(process).Settle();
    header->returned_bytes = static_cast<int32_t>(returned.bytes);
    header->returned_messages = static_cast<int32_t>(returned.messages);
  }

 private:
  std::vector<Credit> small_credit_;   // by process
  Credit::Amount small_limit_;
};

}  // namespace jaxccomp
