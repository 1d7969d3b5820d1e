package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.Criterion
import com.intel.analytics.bigdl.dllib.models.utils.ModelBroadcast
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Trigger, ValidationMethod}
import com.intel.analytics.bigdl.dllib.tensor.Tensor

/** When, and by what, the network is judged. */
private[bigdl] final case class Validation(trigger: Trigger, methods: Seq[ValidationMethod[Float]])

/** When, and where, the network and its optimization methods are saved. */
private[bigdl] final case class CheckpointRequest(trigger: Trigger, path: String)

/**
 * What the driver asks of all ranks.
 *
 * @param job of this attempt
 * @param conf the keys of the application's conf that are about training
 * @param methods by the name of the part of the network that each is for
 * @param spans of these parts: first element of the flat vector, and how many
 * @param clipping as in [[Shard]]
 * @param start how far training is already
 * @param epochRows how many rows of the current epoch were used; `rows`: of all in an epoch
 * @param cores of each executor, each of which has a replica of the network
 */
private[bigdl] final case class TrainingRequest(
    job: Long,
    conf: Seq[(String, String)],
    network: ModelBroadcast[Float],
    criterion: Criterion[Float],
    methods: Map[String, OptimMethod[Float]],
    spans: Map[String, (Int, Int)],
    clipping: Option[(Float, Float)],
    endWhen: Trigger,
    validation: Option[Validation],
    checkpoint: Option[CheckpointRequest],
    start: Progress,
    epochRows: Long,
    rows: Long,
    ranks: Int,
    cores: Int
) {

  /** The name of the method for the parameters from this element on. */
  def methodFor(element: Int): String = spans
    .collectFirst { case (name, (first, count)) if first <= element && element < first + count => name }
    .getOrElse(throw new UnsupportedTrainingException(
      s"no optimization method is for parameter $element of the network"
    ))
}

/**
 * An iteration that was done, as summaries show it.
 *
 * @param number counted from 1
 * @param epoch and `score`: after it
 * @param rowsPerSecond of all ranks
 */
private[bigdl] final case class Iteration(
    number: Int,
    epoch: Int,
    loss: Float,
    score: Float,
    learningRate: Float,
    rowsPerSecond: Float
)

/** What each validation method said after an iteration. */
private[bigdl] final case class Judgement(iteration: Int, values: Seq[(String, Float)])

/**
 * What a rank has in the end.
 *
 * @param stretches the parameters that it updated
 * @param told by rank 0 alone
 */
private[bigdl] final case class RankResult(stretches: Seq[Stretch], account: Account, told: Option[Told])

/**
 * @param methods with what they know of how far training is
 * @param extras what the network keeps that is no parameter
 * @param batching how layers travelled, as JSON
 */
private[bigdl] final case class Told(
    iterations: Seq[Iteration],
    judgements: Seq[Judgement],
    methods: Map[String, OptimMethod[Float]],
    extras: Array[Tensor[Float]],
    batching: String
)
