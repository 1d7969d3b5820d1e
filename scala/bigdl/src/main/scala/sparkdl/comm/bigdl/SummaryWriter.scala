// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.io.IOException

import scala.concurrent.duration._

import org.apache.spark.internal.Logging

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.utils.T
import com.intel.analytics.bigdl.dllib.visualization.{Summary, TrainSummary, ValidationSummary}

/** Writer of a training's values from rank 0 into BigDL's summaries, after training. */
private[bigdl] final class SummaryWriter(
    train: Option[TrainSummary],
    validation: Option[ValidationSummary]
) extends Logging {
  import SummaryWriter._

  /** Write all values. When this returns, the summaries can be read. */
  def write(result: TrainingResult): Unit = {
    train.foreach(summary => add(summary, result.iterations.flatMap(scalars(summary, _))))
    validation.foreach { summary =>
      add(
        summary,
        for (record <- result.validations; (name, value) <- record.values)
          yield Scalar(name, value, record.iteration.toLong)
      )
    }
  }

  private def scalars(summary: TrainSummary, iteration: IterationRecord): Seq[Scalar] = {
    val state = T(
      "epoch" -> iteration.epoch,
      "neval" -> (iteration.number + 1),
      "Loss" -> iteration.loss,
      "score" -> iteration.score,
      "LearningRate" -> iteration.learningRate,
      "Throughput" -> iteration.rowsPerSecond
    )
    SparkdlBigDL.scalarTriggers(summary).toSeq.collect {
      case (name, trigger) if trigger(state) =>
        Scalar(name, state[Float](name), iteration.number.toLong)
    }
  }

  /**
   * Add values to a summary. Its own thread writes them in order, without saying when it is done,
   * so wait for the last one.
   */
  private def add(summary: Summary, scalars: Seq[Scalar]): Unit =
    scalars.lastOption.foreach { last =>
      val before = summary.readScalar(last.name).length
      scalars.foreach(scalar => summary.addScalar(scalar.name, scalar.value, scalar.step))
      val written = before + scalars.count(_.name == last.name)
      val deadline = Patience.fromNow
      def isWritten: Boolean =
        try summary.readScalar(last.name).length >= written
        catch { case _: IOException => false } // only half of it is written yet
      var hasAll = isWritten
      while (!hasAll && deadline.hasTimeLeft()) {
        Thread.sleep(PollMillis)
        hasAll = isWritten
      }
      if (!hasAll)
        logWarning(s"A summary is not complete after $Patience: it is still being written")
    }
}

private object SummaryWriter {
  private final case class Scalar(name: String, value: Float, step: Long)

  private val Patience = 1.minute
  private val PollMillis = 10
}
