// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.nio.ByteBuffer

import com.intel.analytics.bigdl.dllib.keras.metrics.AUC
import com.intel.analytics.bigdl.dllib.optim.{
  AccuracyResult,
  ContiguousResult,
  MeanAveragePrecision,
  MeanAveragePrecisionObjectDetection,
  PrecisionRecallAUC,
  ValidationMethod,
  ValidationResult
}

import sparkdl.comm.ps.Gathering

/**
 * Losses of a rank's replicas in an iteration.
 *
 * @param loss the sum over the replicas
 */
private[bigdl] final case class Losses(loss: Double, replicas: Int, rows: Int) {
  def encode: Array[Byte] =
    ByteBuffer.allocate(16).putDouble(loss).putInt(replicas).putInt(rows).array
  def +(other: Losses): Losses =
    Losses(loss + other.loss, replicas + other.replicas, rows + other.rows)
  def mean: Float = loss.toFloat / replicas
}

private[bigdl] object Losses {

  /** Return the sum over all ranks. */
  def addUp(round: Gathering.Round): Losses = round.parts().map { part =>
    val fields = ByteBuffer.wrap(part)
    Losses(fields.getDouble(), fields.getInt(), fields.getInt())
  }.reduce(_ + _)
}

/** Validation results as sums over rows: for each method, the sum of its values and their count. */
private[bigdl] final case class ValidationSums(sums: Seq[(Double, Long)]) {
  def encode: Array[Byte] = {
    val bytes = ByteBuffer.allocate(16 * sums.size)
    sums.foreach { case (sum, count) => bytes.putDouble(sum).putLong(count) }
    bytes.array
  }

  def means: Seq[Float] = sums.map { case (sum, count) => (sum / count).toFloat }
}

private[bigdl] object ValidationSums {

  /**
   * Check BigDL's own methods. A user's method is checked by its result.
   *
   * @throws UnsupportedTrainingException if the result of a method is not a mean over rows
   */
  def check(methods: Seq[ValidationMethod[Float]]): Unit = methods.foreach {
    case other @ (_: PrecisionRecallAUC[_] | _: AUC[_] | _: MeanAveragePrecision[_] |
        _: MeanAveragePrecisionObjectDetection[_]) =>
      refuse(other.getClass.getSimpleName)
    case _ =>
  }

  /**
   * Convert the results of one rank.
   *
   * @param results None if the rank has no rows
   * @throws UnsupportedTrainingException if a result is not a mean over rows, so that the ranks'
   *    results cannot be added up
   */
  def apply(results: Option[Seq[ValidationResult]], methods: Int): ValidationSums =
    ValidationSums(results.fold(Seq.fill(methods)((0.0, 0L)))(_.map {
      case mean @ (_: AccuracyResult | _: ContiguousResult) =>
        val (value, count) = mean.result()
        (value.toDouble * count, count.toLong)
      case other => refuse(other.getClass.getSimpleName)
    }))

  /** Return the sum over all ranks. */
  def addUp(round: Gathering.Round): ValidationSums = ValidationSums(
    round.parts().map { part =>
      val fields = ByteBuffer.wrap(part)
      Seq.fill(part.length / 16)((fields.getDouble(), fields.getLong()))
    }.reduce(_.zip(_).map { case ((sum, count), (more, of)) => (sum + more, count + of) })
  )

  private def refuse(what: String): Nothing = throw new UnsupportedTrainingException(
    s"$what is not a mean over rows, and ranks can add up nothing else: validate with accuracies," +
      " losses or mean errors, and compute others after training"
  )
}
