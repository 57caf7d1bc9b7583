from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fence(_message.Message):
    __slots__ = ("attempt", "term", "epoch")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    term: int
    epoch: int
    def __init__(self, attempt: _Optional[int] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("code", "data", "torch", "device", "threads", "spec", "weights", "outputs", "products", "samples")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    code: str
    data: str
    torch: str
    device: str
    threads: int
    spec: str
    weights: str
    outputs: str
    products: str
    samples: str
    def __init__(self, code: _Optional[str] = ..., data: _Optional[str] = ..., torch: _Optional[str] = ..., device: _Optional[str] = ..., threads: _Optional[int] = ..., spec: _Optional[str] = ..., weights: _Optional[str] = ..., outputs: _Optional[str] = ..., products: _Optional[str] = ..., samples: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent", "pod_uid", "node", "zone", "machine", "data_address", "liveness_address", "fence", "has_state", "language")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    pod_uid: str
    node: str
    zone: str
    machine: str
    data_address: str
    liveness_address: str
    fence: Fence
    has_state: bool
    language: int
    def __init__(self, agent: _Optional[str] = ..., pod_uid: _Optional[str] = ..., node: _Optional[str] = ..., zone: _Optional[str] = ..., machine: _Optional[str] = ..., data_address: _Optional[str] = ..., liveness_address: _Optional[str] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., has_state: _Optional[bool] = ..., language: _Optional[int] = ...) -> None: ...

class LayerCost(_message.Message):
    __slots__ = ("forward_s", "backward_s", "parameter_bytes", "output_bytes", "input_gradient_s", "weight_gradient_s", "can_split", "activation_bytes")
    FORWARD_S_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_S_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENT_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_GRADIENT_S_FIELD_NUMBER: _ClassVar[int]
    CAN_SPLIT_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int
    input_gradient_s: float
    weight_gradient_s: float
    can_split: bool
    activation_bytes: int
    def __init__(self, forward_s: _Optional[float] = ..., backward_s: _Optional[float] = ..., parameter_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., input_gradient_s: _Optional[float] = ..., weight_gradient_s: _Optional[float] = ..., can_split: _Optional[bool] = ..., activation_bytes: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("fingerprint", "layers", "training_samples", "validation_samples", "costs", "storage_error", "memory_bytes", "nccl", "ties")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: Fingerprint
    layers: int
    training_samples: int
    validation_samples: int
    costs: _containers.RepeatedCompositeFieldContainer[LayerCost]
    storage_error: str
    memory_bytes: int
    nccl: str
    ties: _containers.RepeatedCompositeFieldContainer[Tie]
    def __init__(self, fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ..., layers: _Optional[int] = ..., training_samples: _Optional[int] = ..., validation_samples: _Optional[int] = ..., costs: _Optional[_Iterable[_Union[LayerCost, _Mapping]]] = ..., storage_error: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., nccl: _Optional[str] = ..., ties: _Optional[_Iterable[_Union[Tie, _Mapping]]] = ...) -> None: ...

class Tie(_message.Message):
    __slots__ = ("layers",)
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, layers: _Optional[_Iterable[int]] = ...) -> None: ...

class AgentReport(_message.Message):
    __slots__ = ("fence", "installed", "versions", "items", "commits", "ended")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    installed: Fence
    versions: _containers.ScalarMap[int, int]
    items: _containers.RepeatedScalarFieldContainer[str]
    commits: _containers.RepeatedCompositeFieldContainer[CommitRecord]
    ended: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., installed: _Optional[_Union[Fence, _Mapping]] = ..., versions: _Optional[_Mapping[int, int]] = ..., items: _Optional[_Iterable[str]] = ..., commits: _Optional[_Iterable[_Union[CommitRecord, _Mapping]]] = ..., ended: _Optional[int] = ...) -> None: ...

class CommitRecord(_message.Message):
    __slots__ = ("step", "loss", "grad_norm", "finite", "validation_loss", "culprit", "skipped", "skipped_in_row", "targets", "metrics", "validation_metrics", "group_norms")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ValidationMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_IN_ROW_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_METRICS_FIELD_NUMBER: _ClassVar[int]
    GROUP_NORMS_FIELD_NUMBER: _ClassVar[int]
    step: int
    loss: float
    grad_norm: float
    finite: bool
    validation_loss: float
    culprit: int
    skipped: int
    skipped_in_row: int
    targets: int
    metrics: _containers.ScalarMap[str, float]
    validation_metrics: _containers.ScalarMap[str, float]
    group_norms: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, step: _Optional[int] = ..., loss: _Optional[float] = ..., grad_norm: _Optional[float] = ..., finite: _Optional[bool] = ..., validation_loss: _Optional[float] = ..., culprit: _Optional[int] = ..., skipped: _Optional[int] = ..., skipped_in_row: _Optional[int] = ..., targets: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., validation_metrics: _Optional[_Mapping[str, float]] = ..., group_norms: _Optional[_Iterable[float]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("attempt", "step", "path", "digest", "value")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: int
    path: str
    digest: str
    value: float
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[int] = ..., path: _Optional[str] = ..., digest: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Ahead(_message.Message):
    __slots__ = ("slices", "dropped", "host_bytes", "copied_bytes", "copied_s", "left_bytes", "failed")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    slices: int
    dropped: int
    host_bytes: int
    copied_bytes: int
    copied_s: float
    left_bytes: int
    failed: int
    def __init__(self, slices: _Optional[int] = ..., dropped: _Optional[int] = ..., host_bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., copied_s: _Optional[float] = ..., left_bytes: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class Hosted(_message.Message):
    __slots__ = ("host_bytes", "left_bytes", "copied_bytes", "copied_s")
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_S_FIELD_NUMBER: _ClassVar[int]
    host_bytes: int
    left_bytes: int
    copied_bytes: int
    copied_s: float
    def __init__(self, host_bytes: _Optional[int] = ..., left_bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., copied_s: _Optional[float] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("zone", "boundary_bytes", "sum_bytes", "copy_bytes", "group_bytes")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    zone: str
    boundary_bytes: int
    sum_bytes: int
    copy_bytes: int
    group_bytes: int
    def __init__(self, zone: _Optional[str] = ..., boundary_bytes: _Optional[int] = ..., sum_bytes: _Optional[int] = ..., copy_bytes: _Optional[int] = ..., group_bytes: _Optional[int] = ...) -> None: ...

class PeerRate(_message.Message):
    __slots__ = ("peer", "rate")
    PEER_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    rate: float
    def __init__(self, peer: _Optional[str] = ..., rate: _Optional[float] = ...) -> None: ...

class Goodput(_message.Message):
    __slots__ = ("sending", "receiving", "slowest_to", "slowest_from")
    SENDING_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_TO_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FROM_FIELD_NUMBER: _ClassVar[int]
    sending: float
    receiving: float
    slowest_to: _containers.RepeatedCompositeFieldContainer[PeerRate]
    slowest_from: _containers.RepeatedCompositeFieldContainer[PeerRate]
    def __init__(self, sending: _Optional[float] = ..., receiving: _Optional[float] = ..., slowest_to: _Optional[_Iterable[_Union[PeerRate, _Mapping]]] = ..., slowest_from: _Optional[_Iterable[_Union[PeerRate, _Mapping]]] = ...) -> None: ...

class HookWarning(_message.Message):
    __slots__ = ("hook", "text")
    HOOK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    hook: int
    text: str
    def __init__(self, hook: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("commit", "step_s", "busy_s", "sent_bytes", "fence", "ahead", "hosted", "sent", "goodput", "warnings")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    HOSTED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    commit: CommitRecord
    step_s: float
    busy_s: float
    sent_bytes: int
    fence: Fence
    ahead: Ahead
    hosted: Hosted
    sent: _containers.RepeatedCompositeFieldContainer[Sent]
    goodput: Goodput
    warnings: _containers.RepeatedCompositeFieldContainer[HookWarning]
    def __init__(self, commit: _Optional[_Union[CommitRecord, _Mapping]] = ..., step_s: _Optional[float] = ..., busy_s: _Optional[float] = ..., sent_bytes: _Optional[int] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., ahead: _Optional[_Union[Ahead, _Mapping]] = ..., hosted: _Optional[_Union[Hosted, _Mapping]] = ..., sent: _Optional[_Iterable[_Union[Sent, _Mapping]]] = ..., goodput: _Optional[_Union[Goodput, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[HookWarning, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "step", "progress_word", "fence", "activity", "suspicions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_WORD_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    SUSPICIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    step: int
    progress_word: int
    fence: Fence
    activity: Activity
    suspicions: _containers.RepeatedCompositeFieldContainer[Suspicion]
    def __init__(self, sequence: _Optional[int] = ..., step: _Optional[int] = ..., progress_word: _Optional[int] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ..., suspicions: _Optional[_Iterable[_Union[Suspicion, _Mapping]]] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("kind", "age_s", "limit_s", "instruction", "peer", "still_s", "rate")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Activity.Kind]
        KIND_STARTING: _ClassVar[Activity.Kind]
        KIND_IDLE: _ClassVar[Activity.Kind]
        KIND_RUNNING: _ClassVar[Activity.Kind]
        KIND_LOADING: _ClassVar[Activity.Kind]
        KIND_WAITING: _ClassVar[Activity.Kind]
    KIND_UNSPECIFIED: Activity.Kind
    KIND_STARTING: Activity.Kind
    KIND_IDLE: Activity.Kind
    KIND_RUNNING: Activity.Kind
    KIND_LOADING: Activity.Kind
    KIND_WAITING: Activity.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STILL_S_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    kind: Activity.Kind
    age_s: float
    limit_s: float
    instruction: str
    peer: str
    still_s: float
    rate: float
    def __init__(self, kind: _Optional[_Union[Activity.Kind, str]] = ..., age_s: _Optional[float] = ..., limit_s: _Optional[float] = ..., instruction: _Optional[str] = ..., peer: _Optional[str] = ..., still_s: _Optional[float] = ..., rate: _Optional[float] = ...) -> None: ...

class Suspicion(_message.Message):
    __slots__ = ("agent", "cause", "fence")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CAUSE_UNSPECIFIED: _ClassVar[Suspicion.Cause]
        CAUSE_LIVENESS_CLOSED: _ClassVar[Suspicion.Cause]
        CAUSE_LIVENESS_SILENT: _ClassVar[Suspicion.Cause]
        CAUSE_CHANNEL_BROKEN: _ClassVar[Suspicion.Cause]
    CAUSE_UNSPECIFIED: Suspicion.Cause
    CAUSE_LIVENESS_CLOSED: Suspicion.Cause
    CAUSE_LIVENESS_SILENT: Suspicion.Cause
    CAUSE_CHANNEL_BROKEN: Suspicion.Cause
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    cause: Suspicion.Cause
    fence: Fence
    def __init__(self, agent: _Optional[str] = ..., cause: _Optional[_Union[Suspicion.Cause, str]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("lead_ms", "reason", "source", "is_hint")
    LEAD_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_HINT_FIELD_NUMBER: _ClassVar[int]
    lead_ms: int
    reason: str
    source: str
    is_hint: bool
    def __init__(self, lead_ms: _Optional[int] = ..., reason: _Optional[str] = ..., source: _Optional[str] = ..., is_hint: _Optional[bool] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "message", "user_error", "exit_code", "place")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USER_ERROR_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    user_error: bool
    exit_code: int
    place: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., user_error: _Optional[bool] = ..., exit_code: _Optional[int] = ..., place: _Optional[str] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("manifest", "is_seen_once", "unseen")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    IS_SEEN_ONCE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    is_seen_once: bool
    unseen: str
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., is_seen_once: _Optional[bool] = ..., unseen: _Optional[str] = ...) -> None: ...

class Halted(_message.Message):
    __slots__ = ("fence", "message")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    message: str
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class BadCheckpoint(_message.Message):
    __slots__ = ("attempt", "step", "message", "cause", "fence")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: int
    message: str
    cause: str
    fence: Fence
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[int] = ..., message: _Optional[str] = ..., cause: _Optional[str] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ...) -> None: ...

class Listed(_message.Message):
    __slots__ = ("manifests", "fence", "is_partial", "error", "right")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[Manifest]
    fence: Fence
    is_partial: bool
    error: str
    right: Mark
    def __init__(self, manifests: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., is_partial: _Optional[bool] = ..., error: _Optional[str] = ..., right: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("agent", "entered", "digest", "layers")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    entered: int
    digest: int
    layers: int
    def __init__(self, agent: _Optional[str] = ..., entered: _Optional[int] = ..., digest: _Optional[int] = ..., layers: _Optional[int] = ...) -> None: ...

class Dispute(_message.Message):
    __slots__ = ("lo", "hi", "microbatch", "claims")
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    lo: int
    hi: int
    microbatch: int
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, lo: _Optional[int] = ..., hi: _Optional[int] = ..., microbatch: _Optional[int] = ..., claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("step", "dispute")
    STEP_FIELD_NUMBER: _ClassVar[int]
    DISPUTE_FIELD_NUMBER: _ClassVar[int]
    step: int
    dispute: Dispute
    def __init__(self, step: _Optional[int] = ..., dispute: _Optional[_Union[Dispute, _Mapping]] = ...) -> None: ...

class Disputed(_message.Message):
    __slots__ = ("fence", "step", "disputes")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DISPUTES_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    step: int
    disputes: _containers.RepeatedCompositeFieldContainer[Dispute]
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., step: _Optional[int] = ..., disputes: _Optional[_Iterable[_Union[Dispute, _Mapping]]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "ready", "heartbeat", "report", "progress", "suspicion", "notice", "failure", "sealed", "bad_checkpoint", "left", "finished", "listed", "disputed", "halted")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BAD_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    ready: Ready
    heartbeat: Heartbeat
    report: AgentReport
    progress: Progress
    suspicion: Suspicion
    notice: Notice
    failure: Failure
    sealed: Sealed
    bad_checkpoint: BadCheckpoint
    left: Left
    finished: Finished
    listed: Listed
    disputed: Disputed
    halted: Halted
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., report: _Optional[_Union[AgentReport, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., suspicion: _Optional[_Union[Suspicion, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ..., bad_checkpoint: _Optional[_Union[BadCheckpoint, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., listed: _Optional[_Union[Listed, _Mapping]] = ..., disputed: _Optional[_Union[Disputed, _Mapping]] = ..., halted: _Optional[_Union[Halted, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "job", "job_uid", "spec_json", "heartbeat_ms", "lease_ms", "start_ms", "instruction_floor_ms")
    TERM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FLOOR_MS_FIELD_NUMBER: _ClassVar[int]
    term: int
    job: str
    job_uid: str
    spec_json: str
    heartbeat_ms: int
    lease_ms: int
    start_ms: int
    instruction_floor_ms: int
    def __init__(self, term: _Optional[int] = ..., job: _Optional[str] = ..., job_uid: _Optional[str] = ..., spec_json: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., start_ms: _Optional[int] = ..., instruction_floor_ms: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("fence", "want_manifests", "void", "suspect")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WANT_MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    want_manifests: bool
    void: Fence
    suspect: Manifest
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., want_manifests: _Optional[bool] = ..., void: _Optional[_Union[Fence, _Mapping]] = ..., suspect: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: int
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: int
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("agent", "data_address", "liveness_address", "key", "zone", "node")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    data_address: str
    liveness_address: str
    key: bytes
    zone: str
    node: str
    def __init__(self, agent: _Optional[str] = ..., data_address: _Optional[str] = ..., liveness_address: _Optional[str] = ..., key: _Optional[bytes] = ..., zone: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("fence", "target", "last", "resume", "plan_hash", "has_continuation", "wanted", "peers", "key", "manifest", "voters", "batch", "coordinator", "lane", "lane_limit", "compares", "hosted", "question", "hosts_ahead", "forks", "bad", "node", "look_s")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    HAS_CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LANE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    COMPARES_FIELD_NUMBER: _ClassVar[int]
    HOSTED_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    HOSTS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOOK_S_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    target: int
    last: int
    resume: str
    plan_hash: str
    has_continuation: bool
    wanted: _containers.RepeatedCompositeFieldContainer[Range]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    key: bytes
    manifest: Manifest
    voters: _containers.RepeatedScalarFieldContainer[str]
    batch: BatchShape
    coordinator: str
    lane: str
    lane_limit: int
    compares: bool
    hosted: _containers.RepeatedCompositeFieldContainer[Range]
    question: Question
    hosts_ahead: bool
    forks: _containers.RepeatedCompositeFieldContainer[Fork]
    bad: _containers.RepeatedCompositeFieldContainer[Mark]
    node: str
    look_s: float
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., target: _Optional[int] = ..., last: _Optional[int] = ..., resume: _Optional[str] = ..., plan_hash: _Optional[str] = ..., has_continuation: _Optional[bool] = ..., wanted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., key: _Optional[bytes] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., voters: _Optional[_Iterable[str]] = ..., batch: _Optional[_Union[BatchShape, _Mapping]] = ..., coordinator: _Optional[str] = ..., lane: _Optional[str] = ..., lane_limit: _Optional[int] = ..., compares: _Optional[bool] = ..., hosted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., hosts_ahead: _Optional[bool] = ..., forks: _Optional[_Iterable[_Union[Fork, _Mapping]]] = ..., bad: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., node: _Optional[str] = ..., look_s: _Optional[float] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("fence", "plan_hash", "steady", "final", "peers", "lane")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    STEADY_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    plan_hash: str
    steady: str
    final: str
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    lane: str
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., plan_hash: _Optional[str] = ..., steady: _Optional[str] = ..., final: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., lane: _Optional[str] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("lo", "hi")
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    lo: int
    hi: int
    def __init__(self, lo: _Optional[int] = ..., hi: _Optional[int] = ...) -> None: ...

class BatchShape(_message.Message):
    __slots__ = ("microbatches", "leaf_size", "chunks")
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    LEAF_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    microbatches: int
    leaf_size: int
    chunks: int
    def __init__(self, microbatches: _Optional[int] = ..., leaf_size: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("exit_code", "reason")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Reconnect(_message.Message):
    __slots__ = ("after_ms",)
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    after_ms: int
    def __init__(self, after_ms: _Optional[int] = ...) -> None: ...

class OperatorMessage(_message.Message):
    __slots__ = ("welcome", "stop", "directive", "release", "reconnect", "continuation")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    stop: Stop
    directive: Directive
    release: Release
    reconnect: Reconnect
    continuation: Continuation
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., directive: _Optional[_Union[Directive, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., reconnect: _Optional[_Union[Reconnect, _Mapping]] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ...) -> None: ...
