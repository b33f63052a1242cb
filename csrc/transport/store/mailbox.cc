#include "transport/store/mailbox.h"

#include <utility>

namespace jaxccomp {

std::optional<Mailbox::StoredMessage> Mailbox::Take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return closed_ || !outgoing_.empty(); });
  // What was posted before the end is still put there: others may be told by it.
  if (outgoing_.empty()) return std::nullopt;
  StoredMessage message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

void Mailbox::Deliver(std::string text) {
  std::lock_guard lock(mutex_);
  incoming_.push_back(std::move(text));
}

void Mailbox::Fail(Status why) {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = std::move(why);
}

void Mailbox::EndParting() {
  std::lock_guard lock(mutex_);
  parted_ = true;
}

void Mailbox::Post(int process, std::string text) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  outgoing_.push_back({process, std::move(text)});
  wake_.notify_one();
}

std::vector<std::string> Mailbox::Collect() {
  std::lock_guard lock(mutex_);
  return std::exchange(incoming_, {});
}

Status Mailbox::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool Mailbox::HasParted() const {
  std::lock_guard lock(mutex_);
  return parted_;
}

void Mailbox::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_all();
}

}  // namespace jaxccomp
