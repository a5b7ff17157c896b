"""The changes this project makes to Horovod's source distribution before building it.

No Horovod source is shipped: each change is a piece of text that has to be found exactly
once in the unpacked source distribution (the anchor) and what takes its place. If an
anchor is missing or ambiguous nothing is written and the build stops, because then this
is not the Horovod the changes were made for. BUILD.md says why each of them is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class PatchError(Exception):
    """The source tree is not the one that the changes were written for."""


@dataclass(frozen=True)
class Edit:
    """Replace the one occurrence of `anchor` in the file `path` by `replacement`."""

    path: str
    anchor: str
    replacement: str
    reason: str


_CMAKE = "horovod/tensorflow/CMakeLists.txt"
_OPERATIONS = "horovod/common/operations.cc"
_QUEUE = "horovod/common/tensor_queue"
_TENSORFLOW = "horovod/tensorflow/mpi_ops.cc"
_PAIR = "third_party/gloo/gloo/transport/tcp/pair.cc"
_GLOO_CONTEXT = "horovod/common/gloo/gloo_context.cc"
_MESH = "third_party/gloo/gloo/rendezvous/context.cc"
_HTTP = "third_party/HTTPRequest/include/HTTPRequest.hpp"

EDITS: tuple[Edit, ...] = (
    Edit(
        path=_CMAKE,
        anchor=(
            'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        ),
        replacement="",
        reason="xla_mpi_ops.cc does not compile against TensorFlow 2.19 and later",
    ),
    Edit(
        path=_OPERATIONS,
        anchor="""\
#if HAVE_GLOO
#if HAVE_MPI
  if (global_mpi_context.IsEnabled()) {
    // Initialize gloo context if mpi context is available
""",
        replacement="""\
#if HAVE_GLOO
  try {
#if HAVE_MPI
  if (global_mpi_context.IsEnabled()) {
    // Initialize gloo context if mpi context is available
""",
        reason="open the try block round the rendezvous in BackgroundThreadLoop",
    ),
    Edit(
        path=_OPERATIONS,
        anchor="""\
    state.process_set_table.Initialize(global_gloo_context);
  }
#endif // HAVE_GLOO

  assert(state.global_controller->IsInitialized());
""",
        replacement="""\
    state.process_set_table.Initialize(global_gloo_context);
  }
  } catch (const std::exception& ex) {
    // hvd_elastic_keras: a peer that dies here must not terminate this process.
    LOG(ERROR) << "Horovod could not be initialized: " << ex.what();
    state.process_set_table.Get(0).Finalize(SHUT_DOWN_ERROR);
    global_gloo_context.Finalize();
#if HAVE_MPI
    global_mpi_context.Finalize(mpi_ctx_manager);
#endif
#if HAVE_CCL
    if (state.cpu_operation == LibType::CCL) {
      ccl_context.Finalize();
    }
#endif
    // Last, because the thread that waits in horovod_init() goes on from here.
    state.initialization_failed = true;
    return;
  }
#endif // HAVE_GLOO

  assert(state.global_controller->IsInitialized());
""",
        reason="report a failed rendezvous to hvd.init() and release what was half made",
    ),
    Edit(
        path=_OPERATIONS,
        anchor="""\
    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
""",
        replacement="""\
    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
    horovod_global.initialization_failed = false;
""",
        reason="let hvd.init() succeed after a failed one and hvd.shutdown()",
    ),
    Edit(
        path=_OPERATIONS,
        anchor="""\
    std::this_thread::sleep_for(sleep_duration);
  }
  state.last_cycle_start""",
        replacement="""\
    // hvd_elastic_keras: what is complete is not kept waiting for what might follow.
    state.process_set_table.Get(0).tensor_queue.WaitForGroup(sleep_duration);
  }
  state.last_cycle_start""",
        reason="begin a cycle as soon as there is a whole group of tensors",
    ),
    Edit(
        path=f"{_QUEUE}.h",
        anchor="""\
  void RemoveJoinTensor();
""",
        replacement="""\
  void RemoveJoinTensor();

  // hvd_elastic_keras: until there is a group of tensors, but no longer than the time limit.
  void WaitForGroup(std::chrono::steady_clock::duration limit);

  // hvd_elastic_keras: tensors are taken again after FinalizeTensorQueue.
  void Reopen();
""",
        reason="declare the wait for a group, and the return from the end",
    ),
    Edit(
        path=f"{_QUEUE}.h",
        anchor="""\
  mutable std::mutex mutex_;
""",
        replacement="""\
  mutable std::mutex mutex_;

  // From the moment when a group is added until nothing waits any more.
  bool has_group_ = false;
  std::condition_variable group_added_;

  // From FinalizeTensorQueue to Reopen.
  bool finalized_ = false;
""",
        reason="declare what tells of a group, and of the end",
    ),
    Edit(
        path=f"{_QUEUE}.h",
        anchor="""\
#include <iostream>
#include <mutex>
""",
        replacement="""\
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
""",
        reason="include what the wait for a group needs",
    ),
    Edit(
        path=f"{_QUEUE}.cc",
        anchor="""\
    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
}
""",
        replacement="""\
    message_queue_.push(std::move(messages[i]));
  }
  if (entries.size() > 1) {
    has_group_ = true;
    group_added_.notify_one();
  }
  return Status::OK();
}

void TensorQueue::WaitForGroup(std::chrono::steady_clock::duration limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  has_group_ = has_group_ && !message_queue_.empty();
  group_added_.wait_for(lock, limit, [this] { return has_group_; });
}
""",
        reason="wait for a group, and tell of one",
    ),
    Edit(
        path=f"{_QUEUE}.cc",
        anchor="""\
Status TensorQueue::AddToTensorQueue(TensorTableEntry& e, Request& message) {
  std::lock_guard<std::mutex> guard(mutex_);
""",
        replacement="""\
Status TensorQueue::AddToTensorQueue(TensorTableEntry& e, Request& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (finalized_) {
    return SHUT_DOWN_ERROR;
  }
""",
        reason="refuse a tensor that nobody would look at any more",
    ),
    Edit(
        path=f"{_QUEUE}.cc",
        anchor="""\
                                          std::vector<Request>& messages) {
  std::lock_guard<std::mutex> guard(mutex_);
""",
        replacement="""\
                                          std::vector<Request>& messages) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (finalized_) {
    return SHUT_DOWN_ERROR;
  }
""",
        reason="refuse a group of tensors that nobody would look at any more",
    ),
    Edit(
        path=f"{_QUEUE}.cc",
        anchor="""\
// Execute callback for each tensor and clear tensor queue
void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
""",
        replacement="""\
void TensorQueue::Reopen() {
  std::lock_guard<std::mutex> guard(mutex_);
  finalized_ = false;
}

// Execute callback for each tensor and clear tensor queue
void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
  finalized_ = true;
""",
        reason="let no tensor come after the last look at the queue",
    ),
    Edit(
        path="horovod/common/process_set.cc",
        anchor="""\
  assert(next_id_ == 1);  // exactly one process set is registered
""",
        replacement="""\
  assert(next_id_ == 1);  // exactly one process set is registered
  Get(0).tensor_queue.Reopen();
""",
        reason="take tensors again in the next hvd.init()",
    ),
    Edit(
        path=_TENSORFLOW,
        anchor="""\
      auto tensor = context->input(i);
      OP_REQUIRES_OK_ASYNC(
          context, context->allocate_output(i, tensor.shape(), &outputs[i]),
          done);
    }

    // ReadyEvent makes sure input tensors are ready, and outputs are allocated.
""",
        replacement="""\
      // hvd_elastic_keras: the sums take the place of the gradients if nobody else needs these.
      const auto& tensor = context->input(i);
      OP_REQUIRES_OK_ASYNC(
          context,
          context->forward_input_or_allocate_output({i}, i, tensor.shape(), &outputs[i]),
          done);
    }

    // ReadyEvent makes sure input tensors are ready, and outputs are allocated.
""",
        reason="sum the tensors of a grouped allreduce in place",
    ),
    Edit(
        path="third_party/gloo/gloo/allreduce.cc",
        anchor="""\
    case detail::AllreduceOptionsImpl::UNSPECIFIED:
    case detail::AllreduceOptionsImpl::RING:
      ring(opts, reduceInputs, broadcastOutputs);
      break;
""",
        replacement="""\
    case detail::AllreduceOptionsImpl::UNSPECIFIED:
      // hvd_elastic_keras: few bytes take as long as the messages that wait for one another.
      if (context->size > 4 && totalBytes <= 65536) {
        bcube(opts, reduceInputs, broadcastOutputs);
      } else {
        ring(opts, reduceInputs, broadcastOutputs);
      }
      break;
    case detail::AllreduceOptionsImpl::RING:
      ring(opts, reduceInputs, broadcastOutputs);
      break;
""",
        reason="sum few bytes of many workers in fewer messages that wait for one another",
    ),
    Edit(
        path="horovod/common/parameter_manager.cc",
        anchor="""\
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
    v[index_[variable]] = value;
""",
        replacement="""\
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    // hvd_elastic_keras: the vector has no place for a value that an earlier hvd.init() fixed.
    fixed_values_[variable] = value;
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
    v[index_[variable]] = value;
""",
        reason="let hvd.init() be called again when HOROVOD_FUSION_THRESHOLD or _CYCLE_TIME is set",
    ),
    Edit(
        path="horovod/common/process_set.cc",
        anchor="""\
  gloo_context.InitializeForProcessSet(global_gloo_context,
                                       registered_global_ranks);
""",
        replacement="""\
  // hvd_elastic_keras: without this Finalize() returns at once and leaves the sockets open.
  gloo_context.Enable();
  gloo_context.InitializeForProcessSet(global_gloo_context,
                                       registered_global_ranks);
""",
        reason="close the process set's connections in hvd.shutdown()",
    ),
    Edit(
        path=_GLOO_CONTEXT,
        anchor="""\
  attr device_attr;
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
        replacement="""\
  // hvd_elastic_keras: without this the address is that of the host's name, maybe 127.0.1.1.
  gloo_iface_ = global_context.gloo_iface_;
  attr device_attr;
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
        reason="take the interface that HOROVOD_GLOO_IFACE names for the process sets, too",
    ),
    Edit(
        path=_GLOO_CONTEXT,
        anchor="""\
  assert(global_context.IsEnabled());

""",
        replacement="""\
  assert(global_context.IsEnabled());

  if (registered_ranks.empty()) {
    // hvd_elastic_keras: the process set of all ranks uses the connections that all ranks have.
    global_ctx = ctx = global_context.ctx;
    local_ctx = global_context.local_ctx;
    cross_ctx = global_context.cross_ctx;
    return;
  }

""",
        reason="make no second connections for the process set of all ranks",
    ),
    Edit(
        path=_GLOO_CONTEXT,
        anchor="""\
  local_ctx = Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,
                         rendezvous_addr_env, rendezvous_port,
                         local_rank, local_size, dev, timeout_);
""",
        replacement="""\
  // hvd_elastic_keras: all ranks on one host, or each on a host of its own, need one mesh. These
  // conditions are the same for all ranks.
  local_ctx = local_size == size ? ctx :
              Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,
                         rendezvous_addr_env, rendezvous_port,
                         local_rank, local_size, dev, timeout_);
""",
        reason="make no second connections if all ranks are on one host",
    ),
    Edit(
        path=_GLOO_CONTEXT,
        anchor="""\
  cross_ctx = Rendezvous(HOROVOD_GLOO_CROSS_PREFIX + std::to_string(local_rank),
                         rendezvous_addr_env, rendezvous_port,
                         cross_rank, cross_size, dev, timeout_);
""",
        replacement="""\
  cross_ctx = cross_size == size ? ctx :
              Rendezvous(HOROVOD_GLOO_CROSS_PREFIX + std::to_string(local_rank),
                         rendezvous_addr_env, rendezvous_port,
                         cross_rank, cross_size, dev, timeout_);
""",
        reason="make no second connections if each rank has a host of its own",
    ),
    Edit(
        path="horovod/common/gloo/http_store.h",
        anchor="""\
  void wait(const std::vector<std::string>& keys) override {
""",
        replacement="""\
  std::vector<char> addressesFor(int rank, int size) override {
    // One part of a path: Horovod's own store knows no others, and answers "not found".
    return get("addresses_for." + std::to_string(rank) + "." + std::to_string(size));
  }

  void wait(const std::vector<std::string>& keys) override {
""",
        reason="ask for the addresses of all peers in one request",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/store.h",
        anchor="""\
  virtual bool has_v2_support() {
""",
        replacement="""\
  // hvd_elastic_keras: the addresses that all others have for `rank`, in the order of ranks; empty
  // if this store cannot tell them together.
  virtual std::vector<char> addressesFor(int /*rank*/, int /*size*/) {
    return {};
  }

  virtual bool has_v2_support() {
""",
        reason="declare the request for the addresses of all peers",
    ),
    Edit(
        path=_MESH,
        anchor="""\
  std::string localKey("rank_" + std::to_string(rank));
  const std::vector<char> value(localHostName.begin(), localHostName.end());
  store.set(localKey, value);

  for (int i = 0; i < size; i++) {
    if (i == rank) {
      break;
    }

    std::string key("rank_" + std::to_string(i));
    auto val = store.get(key);
    auto hostName = std::string((const char*)val.data(), val.size());

    if (hostName == localHostName) {
      localRank++;
    }
  }

""",
        replacement="""\
  // hvd_elastic_keras: not made here, because TCP does not use local ranks.

""",
        reason="do not ask for the host name of every peer, which nothing uses",
    ),
    Edit(
        path=_MESH,
        anchor="""\
  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    // Wait for address of other side of this pair to become available
    std::ostringstream key;
""",
        replacement="""\
  // hvd_elastic_keras: one request instead of two for each peer, if the store knows it.
  const auto forThis = size > 1 ? store.addressesFor(rank, size) : std::vector<char>();
  const bool hasAll = size > 1 && forThis.size() == allBytes.size();
  const size_t width = hasAll ? forThis.size() / (size - 1) : 0;
  auto next = forThis.begin();

  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    if (hasAll) {
      transportContext->getPair(i)->connect(std::vector<char>(next, next + width));
      next += width;
      continue;
    }

    // Wait for address of other side of this pair to become available
    std::ostringstream key;
""",
        reason="connect to the addresses that one request has given",
    ),
    Edit(
        path=_OPERATIONS,
        anchor="""\
        << "ExecuteOperation Failed";
    status = Status::UnknownError(ex.what());
""",
        replacement="""\
        << "ExecuteOperation Failed";
    status = Status::UnknownError(ex.what());
#if HAVE_GLOO
    // hvd_elastic_keras: this rank left a collective half-way. Nothing that it sends from here
    // on may reach a peer that is still in it, and the peers must learn of it at once.
    if (process_set.gloo_context.ctx != nullptr) {
      process_set.gloo_context.ctx->closeConnections();
    }
#endif
""",
        reason="close the connections when a collective fails",
    ),
    Edit(
        path="horovod/common/timeline.cc",
        anchor="""\
  if (!cur_filename_.empty() && file_.is_open()) {
    file_.flush();
    file_.close();
  }
  tensor_table_.clear();
""",
        replacement="""\
  if (!cur_filename_.empty() && file_.is_open()) {
    file_.flush();
    file_.close();
  }
  tensor_table_.clear();
  // hvd_elastic_keras: with a rest in the queue the next Initialize() would neither open a file
  // nor become healthy, but start a thread that the one after it overwrites.
  while (!record_queue_.empty()) {
    record_queue_.pop();
  }
  cur_filename_ = "";
  new_pending_filename_ = "";
""",
        reason="let the timeline start again after a shutdown that it did not finish writing",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
void Pair::sendAsyncMode(Op& op) {
  GLOO_ENFORCE(!sync_);
""",
        replacement="""\
void Pair::sendAsyncMode(Op& op) {
  GLOO_ENFORCE(!sync_);
  // hvd_elastic_keras: fail at once on a closed pair instead of queueing for ever.
  verifyConnected();
""",
        reason="fail at once when sending on a closed connection",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock) {
    return;
  }
""",
        replacement="""\
  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock) {
    // hvd_elastic_keras: who has it may be waiting for this processor. The event is still there,
    // so that the loop would come back at once, until the scheduler takes the processor away.
    std::this_thread::yield();
    return;
  }
""",
        reason="let the thread go on that has the lock of a connection",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
  GLOO_ENFORCE(ex_ == nullptr);

  if (state_ == CONNECTED) {
    handleReadWrite(events);
""",
        replacement="""\
  GLOO_ENFORCE(ex_ == nullptr);

  // hvd_elastic_keras: what is thrown in this thread would end the process.
  try {
  if (state_ == CONNECTED) {
    handleReadWrite(events);
""",
        reason="open the try block in the event thread",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
  GLOO_ENFORCE(false, "Unexpected state: ", state_);
}
""",
        replacement="""\
  GLOO_ENFORCE(false, "Unexpected state: ", state_);
  } catch (const std::exception&) {
    if (ex_ == nullptr) {
      signalException(std::current_exception());
    }
  }
}
""",
        reason="hand an error of the event thread to whoever waits for the connection",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
      op.buf->signalException(ex);
    }
  }

  // Loop through pending send operations.
""",
        replacement="""\
      op.buf->signalException(ex);
    }
    // hvd_elastic_keras: a message in flight has a waiting thread too.
    NonOwningPtr<UnboundBuffer> sending(op.ubuf);
    if (sending) {
      sending->signalException(ex);
    }
  }
  {
    NonOwningPtr<UnboundBuffer> receiving(rx_.ubuf);
    if (receiving) {
      receiving->signalException(ex);
    }
  }

  // Loop through pending send operations.
""",
        reason="wake the thread that waits for a message which was partly sent or received",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
#include "gloo/transport/tcp/unbound_buffer.h"

#define FD_INVALID (-1)
""",
        replacement="""\
#include "gloo/transport/tcp/unbound_buffer.h"

#include <poll.h>
#include <sys/random.h>
#include <thread>

#define FD_INVALID (-1)
""",
        reason="declare what the check of new connections and the wait for a lock need",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
void Pair::listen() {
""",
        replacement="""\
// hvd_elastic_keras: whether a new connection begins with the secret of this listening socket,
// which only those know who have read its address in the rendezvous store.
static bool beginsWith(sequence_number_t secret, int fd) {
  // The kernel hands over connections whose first bytes are there (TCP_DEFER_ACCEPT). It may do
  // so without them if very many come at once: then these may take a moment.
  constexpr int kPatienceMs = 100;
  struct pollfd ready = {fd, POLLIN, 0};
  int rv;
  do {
    rv = poll(&ready, 1, kPatienceMs);
  } while (rv == -1 && errno == EINTR);
  sequence_number_t given = 0;
  return rv == 1 &&
      ::recv(fd, &given, sizeof(given), MSG_DONTWAIT) == ssize_t(sizeof(given)) &&
      given == secret;
}

void Pair::listen() {
""",
        reason="tell the peer from a stranger",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
  // Keep copy of address
  self_ = Address::fromSockName(fd);
""",
        replacement="""\
  // hvd_elastic_keras: the peer reads the secret as a part of this address, see beginsWith().
  sequence_number_t secret;
  int patienceSeconds = 30;
  rv = getrandom(&secret, sizeof(secret), 0);
  if (rv != int(sizeof(secret)) ||
      setsockopt(
          fd_,
          IPPROTO_TCP,
          TCP_DEFER_ACCEPT,
          &patienceSeconds,
          sizeof(patienceSeconds)) == -1) {
    ::close(fd_);
    fd_ = FD_INVALID;
    signalAndThrowException(GLOO_ERROR_MSG("listen: ", strerror(errno)));
  }
  setSocketBlocking(fd_, false);

  // Keep copy of address
  self_ = Address(Address::fromSockName(fd).getSockaddr(), secret);
""",
        reason="give each listening socket a secret",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);
""",
        replacement="""\
  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);

  // hvd_elastic_keras: a stranger is turned away, and the peer is still waited for.
  if (rv == -1 && (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)) {
    return;
  }
  if (rv != -1 && !beginsWith(self_.getSeq(), rv)) {
    ::close(rv);
    return;
  }
""",
        reason="turn strangers away from a listening socket",
    ),
    Edit(
        path=_PAIR,
        anchor="""\
        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }
""",
        replacement="""\
        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }

  // hvd_elastic_keras: show the secret that was in the address, see beginsWith().
  const sequence_number_t secret = peer_.getSeq();
  if (::send(fd_, &secret, sizeof(secret), MSG_NOSIGNAL) != ssize_t(sizeof(secret))) {
    signalException(GLOO_ERROR_MSG("send ", peer_.str(), ": ", strerror(errno)));
    return;
  }
""",
        reason="show the peer that this is no stranger",
    ),
    Edit(
        path=_HTTP,
        anchor="""\
            const auto portPosition = domain.find(':');
""",
        replacement="""\
            // hvd_elastic_keras: an IPv6 address stands in brackets (RFC 3986, 3.2.2).
            const auto addressEnd = domain.find('[') == 0 ? domain.find(']') : std::string::npos;
            const bool isIpv6 = addressEnd != std::string::npos;
            if (isIpv6)
                internetProtocol = InternetProtocol::V6;

            const auto portPosition = domain.find(':', isIpv6 ? addressEnd : 0);
""",
        reason="take the address of a rendezvous server that is reached by IPv6",
    ),
    Edit(
        path=_HTTP,
        anchor="""\
            if (getaddrinfo(domain.c_str(), port.c_str(), &hints, &info) != 0)
""",
        replacement="""\
            // hvd_elastic_keras: the brackets are not part of the address.
            const bool inBrackets = domain.find('[') == 0;
            const std::string host = inBrackets ? domain.substr(1, domain.find(']') - 1) : domain;
            if (getaddrinfo(host.c_str(), port.c_str(), &hints, &info) != 0)
""",
        reason="connect to a rendezvous server that is reached by IPv6",
    ),
)

TO_COMPILE = tuple(edit for edit in EDITS if edit.path == _CMAKE)
"""What Horovod needs at least, to compare with it."""


def apply_edits(source_dir: Path, edits: tuple[Edit, ...] = EDITS) -> None:
    """Apply all `edits` below `source_dir`, or raise `PatchError` and write nothing."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.path)
        if text is None:
            text = _read(source_dir / edit.path)
        count = text.count(edit.anchor)
        if count != 1:
            raise PatchError(
                f"{edit.path}: expected the anchor of the change {edit.reason!r} exactly once, "
                f"found it {count} times. The changes are for an unmodified Horovod 0.28.1; for "
                "another version adapt EDITS in scripts/horovod_patch.py."
            )
        texts[edit.path] = text.replace(edit.anchor, edit.replacement)
    for path, text in texts.items():
        (source_dir / path).write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PatchError(f"{path}: cannot be read ({error.strerror}). Is it Horovod?") from error
