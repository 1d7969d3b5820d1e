package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.utils.T
import com.intel.analytics.bigdl.dllib.visualization.{TrainSummary, ValidationSummary}

/** Writes what rank 0 tells of a training to BigDL's summaries, once training is over. */
private[bigdl] final class SummaryWriter(train: Option[TrainSummary], validation: Option[ValidationSummary]) {
  def write(told: Told): Unit = {
    train.foreach(summary => told.iterations.foreach(write(summary, _)))
    for (summary <- validation; judgement <- told.judgements; (name, value) <- judgement.values)
      summary.addScalar(name, value, judgement.iteration.toLong)
  }

  private def write(summary: TrainSummary, iteration: Iteration): Unit = {
    val state = T(
      "epoch" -> iteration.epoch,
      "neval" -> (iteration.number + 1),
      "Loss" -> iteration.loss,
      "score" -> iteration.score,
      "LearningRate" -> iteration.learningRate,
      "Throughput" -> iteration.rowsPerSecond
    )
    SparkdlBigDL.scalarTriggers(summary).foreach { case (name, trigger) =>
      if (trigger(state)) summary.addScalar(name, state[Float](name), iteration.number.toLong)
    }
  }
}
