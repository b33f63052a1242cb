// Compiles only if csrc/transport/ucx/ucx_abi.h agrees with UCX's headers. Only tests/ucx/test_library.py compiles it,
// with the headers that it finds.
#include <ucp/api/ucp.h>

#include <cstddef>

#include "transport/ucx/ucx_abi.h"

namespace jaxccomp::ucx {

#define SAME(ours, our_member, theirs, their_member)                            \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(ours::our_member) == sizeof(theirs::their_member))

static_assert(kApiMajor == UCP_API_MAJOR && kApiMinor <= UCP_API_MINOR);
static_assert(sizeof(Status) == sizeof(ucs_status_t));
static_assert(kOk == UCS_OK && kInProgress == UCS_INPROGRESS && kLastError == UCS_ERR_LAST);
static_assert(kConnectionReset == UCS_ERR_CONNECTION_RESET);

SAME(Params, field_mask, ucp_params_t, field_mask);
SAME(Params, features, ucp_params_t, features);
SAME(Params, name, ucp_params_t, name);
static_assert(Params::kFeatures == UCP_PARAM_FIELD_FEATURES && Params::kName == UCP_PARAM_FIELD_NAME);
static_assert(Params::kWakeUp == UCP_FEATURE_WAKEUP && Params::kActiveMessages == UCP_FEATURE_AM);

SAME(WorkerParams, field_mask, ucp_worker_params_t, field_mask);
SAME(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
static_assert(WorkerParams::kThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(WorkerParams::kSerialized == UCS_THREAD_MODE_SERIALIZED);

SAME(EndpointParams, field_mask, ucp_ep_params_t, field_mask);
SAME(EndpointParams, address, ucp_ep_params_t, address);
SAME(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME(EndpointParams, error_handler, ucp_ep_params_t, err_handler.cb);
SAME(EndpointParams, error_user, ucp_ep_params_t, err_handler.arg);
static_assert(EndpointParams::kAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(EndpointParams::kErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(EndpointParams::kErrorHandler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(EndpointParams::kPeer == UCP_ERR_HANDLING_MODE_PEER);

SAME(RequestParam, field_mask, ucp_request_param_t, op_attr_mask);
SAME(RequestParam, flags, ucp_request_param_t, flags);
SAME(RequestParam, sent, ucp_request_param_t, cb.send);
SAME(RequestParam, user_data, ucp_request_param_t, user_data);
static_assert(RequestParam::kCallback == UCP_OP_ATTR_FIELD_CALLBACK);
static_assert(RequestParam::kUserData == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(RequestParam::kFlags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(RequestParam::kSendEagerly == UCP_AM_SEND_FLAG_EAGER);
static_assert(RequestParam::kCloseForcefully == UCP_EP_CLOSE_FLAG_FORCE);

SAME(ReceiveParam, attributes, ucp_am_recv_param_t, recv_attr);
static_assert(ReceiveParam::kRendezvous == UCP_AM_RECV_ATTR_FLAG_RNDV);

SAME(HandlerParam, field_mask, ucp_am_handler_param_t, field_mask);
SAME(HandlerParam, id, ucp_am_handler_param_t, id);
SAME(HandlerParam, flags, ucp_am_handler_param_t, flags);
SAME(HandlerParam, callback, ucp_am_handler_param_t, cb);
SAME(HandlerParam, user, ucp_am_handler_param_t, arg);
static_assert(HandlerParam::kId == UCP_AM_HANDLER_PARAM_FIELD_ID);
static_assert(HandlerParam::kFlags == UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
static_assert(HandlerParam::kCallback == UCP_AM_HANDLER_PARAM_FIELD_CB);
static_assert(HandlerParam::kUser == UCP_AM_HANDLER_PARAM_FIELD_ARG);
static_assert(HandlerParam::kWholeMessages == UCP_AM_FLAG_WHOLE_MSG);

}  // namespace jaxccomp::ucx
