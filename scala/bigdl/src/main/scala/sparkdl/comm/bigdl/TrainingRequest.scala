// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.Criterion
import com.intel.analytics.bigdl.dllib.models.utils.ModelBroadcast
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Trigger, ValidationMethod}
import com.intel.analytics.bigdl.dllib.tensor.Tensor

/** Validation of the network: when, and with which methods. */
private[bigdl] final case class Validation(trigger: Trigger, methods: Seq[ValidationMethod[Float]])

/** Checkpoints of the network and its optimization methods: when, and where. */
private[bigdl] final case class CheckpointRequest(trigger: Trigger, path: String)

/**
 * Request of the driver to all ranks.
 *
 * @param job id of the gang; every attempt has a different one
 * @param conf the application's keys about training.
 * @param methods by the name of their part of the network
 * @param spans first element and length of each part in the flat vector
 * @param clipping as in [[Shard]].
 * @param start progress before this attempt
 * @param epochRows rows of the current epoch that were used
 * @param rows in an epoch
 * @param cores of each executor; each core has a replica of the network
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

  /** Return the name of the method for the parameters from this element on. */
  def methodFor(element: Int): String = spans
    .collectFirst {
      case (name, (first, count)) if first <= element && element < first + count => name
    }
    .getOrElse(throw new UnsupportedTrainingException(
      s"parameter $element of the network has no optimization method"
    ))
}

/**
 * Finished iteration, for summaries.
 *
 * @param number counted from 1
 * @param epoch after the iteration
 * @param score after the iteration
 * @param rowsPerSecond of all ranks
 */
private[bigdl] final case class IterationRecord(
    number: Int,
    epoch: Int,
    loss: Float,
    score: Float,
    learningRate: Float,
    rowsPerSecond: Float
)

/** Results of each validation method after an iteration. */
private[bigdl] final case class ValidationRecord(iteration: Int, values: Seq[(String, Float)])

/**
 * Final result of a rank.
 *
 * @param stretches the parameters that it updated
 * @param result the results that only rank 0 has
 */
private[bigdl] final case class RankResult(
    stretches: Seq[Stretch],
    account: Account,
    result: Option[TrainingResult]
)

/**
 * Results that rank 0 reports for all ranks.
 *
 * @param methods with the final progress of training
 * @param extras state of the network other than parameters
 * @param batching how layers travelled, as JSON
 */
private[bigdl] final case class TrainingResult(
    iterations: Seq[IterationRecord],
    validations: Seq[ValidationRecord],
    methods: Map[String, OptimMethod[Float]],
    extras: Array[Tensor[Float]],
    batching: String
)
