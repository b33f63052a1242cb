#include "transport/keepalive.h"

#include <algorithm>
#include <string>

namespace jaxccomp {

void Keepalive::Grow() {
  peers_.resize(static_cast<size_t>(channel_.processes()), {.heard = Clock::now()});
}

void Keepalive::Poll() {
  if (!on()) return;
  const auto now = Clock::now();
  const auto away = now - polled_;
  if (away < interval()) return;
  polled_ = now;
  if (away > timeout_ / 2) {
    for (Peer& peer : peers_) peer.heard = now;
  }
  std::vector<int> living;
  for (int process = 0; process < channel_.processes(); ++process) {
    if (process == process_ || !channel_.IsLost(process)) living.push_back(process);
  }
  const size_t count = living.size();
  const auto own =
      static_cast<size_t>(std::find(living.begin(), living.end(), process_) - living.begin());
  for (size_t distance = 1; distance < count; distance *= 2) {
    channel_.Tell(living[(own + distance) % count], MessageType::kAlive, 0, 0);
    GiveUpIfSilent(living[(own + count - distance) % count], now);
  }
}

void Keepalive::GiveUpIfSilent(int process, Clock::time_point now) {
  const Peer& peer = peers_[static_cast<size_t>(process)];
  const auto most = peer.has_spoken ? timeout_ : std::max<Clock::duration>(timeout_, kFirstWord);
  if (now - peer.heard <= most) return;
  const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - peer.heard);
  channel_.Lose(process, {Code::kDeadlineExceeded,
                          "rank " + std::to_string(process) + " of the world has not been heard by rank " +
                              std::to_string(process_) + " for " + std::to_string(silent.count()) +
                              " ms (the option peer_timeout_seconds): it has stopped, or the network "
                              "between them has failed"});
}

}  // namespace jaxccomp
