// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.UUID

import scala.util.{Failure, Success, Try}

import org.apache.spark.{BarrierTaskContext, SparkConf, SparkContext, SparkException}
import org.apache.spark.internal.Logging

import com.intel.analytics.bigdl.{Criterion, Module, SparkdlBigDL}
import com.intel.analytics.bigdl.dllib.feature.dataset.{DistributedDataSet, MiniBatch}
import com.intel.analytics.bigdl.dllib.models.utils.ModelBroadcast
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Trigger}
import com.intel.analytics.bigdl.numeric.NumericFloat

import sparkdl.comm.gang.JvmRank

/** Training as Spark jobs: one job, and one more after each loss of a rank. */
private[bigdl] final class TrainingJob(
    sc: SparkContext,
    model: Module[Float],
    data: DistributedDataSet[MiniBatch[Float]],
    criterion: Criterion[Float],
    conf: SparkConf
) extends Logging {
  import TrainingJob._

  private val settings = IBatchSettings(conf)

  /** Train the model. Return rank 0's result, and the summary of all ranks as JSON. */
  def run(
      given: Map[String, OptimMethod[Float]],
      clipping: Option[(Float, Float)],
      endWhen: Trigger,
      validation: Option[Validation],
      validationData: Option[DistributedDataSet[MiniBatch[Float]]],
      checkpoint: Option[CheckpointRequest]
  ): (TrainingResult, String) = {
    given.values.foreach(_.clearHistory())
    val spans = spansOf(given.keySet)
    val kills = new MemoryKillCounter(sc.getConf)

    def attempt(
        number: Int,
        network: Module[Float],
        methods: Map[String, OptimMethod[Float]],
        loss: Option[SparkException]
    ): (TrainingResult, String) = {
      val state = SparkdlBigDL.state(methods.values.head)
      val used = state.getOrElse("recordsProcessedThisEpoch", 0).toLong
      val start = Progress(
        state.getOrElse("epoch", 1),
        state.getOrElse("neval", 1),
        state.getOrElse("Loss", Float.PositiveInfinity),
        state.getOrElse("score", 0f)
      )
      if (used == 0) data.shuffle()
      // This also makes Spark cache again what it lost with an executor. A barrier stage cannot be
      // retried for that.
      val rows = data.data(train = false).map(_.size().toLong).fold(0L)(_ + _)
      validationData.foreach(_.originRDD().count())
      for (
        (name, count) <- Seq("training" -> rows) ++ validationData.map("validation" -> _.size())
        if count == 0
      )
        throw new UnsupportedTrainingException(s"the $name data have no rows")
      val ranks = SparkdlBigDL.nodes
      val request = TrainingRequest(
        UUID.randomUUID().getMostSignificantBits >>> 2 | 1L << 61,
        conf.getAll.toSeq.filter(_._1.startsWith("spark.sparkdl.comm.")),
        ModelBroadcast[Float]().broadcast(sc, network),
        criterion,
        methods,
        spans,
        clipping,
        endWhen,
        validation,
        checkpoint,
        start,
        used,
        rows,
        ranks,
        SparkdlBigDL.cores
      )
      val rowsOfRanks =
        GangData(data.data(train = true), validationData.map(_.data(train = false)), ranks)
      loss.foreach(kills.check(_, isLast = false))
      kills.beginAttempt()
      val executors = sc.getExecutorMemoryStatus.keySet
      Try(TrainingJob.train(request, rowsOfRanks)) match {
        case Success(results) => finish(results)
        case Failure(refused @ Refusal(_)) => throw refused
        case Failure(e: SparkException) =>
          def hasLostExecutors = !executors.subsetOf(sc.getExecutorMemoryStatus.keySet)
          if (!RankLoss.isIn(e.getMessage, hasLostExecutors))
            throw new TrainingFailedException(
              s"training failed, and did not restart because no rank was lost: ${e.getMessage}",
              e
            )
          val isLast = number == settings.maxRestarts
          kills.check(e, isLast)
          if (isLast)
            throw new TrainingFailedException(
              s"training failed ${number + 1} times" +
                s" (spark.sparkdl.comm.maxRestarts=${settings.maxRestarts}): ${e.getMessage}",
              e
            )
          logWarning(
            s"A rank was lost: restarting all ranks, attempt ${number + 1} of at most" +
              s" ${settings.maxRestarts}",
            e
          )
          val saved = checkpoint.flatMap(to => new Checkpoints(to.path).latest(methods.keySet))
          val (from, known) = saved.getOrElse((network, methods))
          attempt(number + 1, from, known, Some(e))
        case Failure(e) => throw e
      }
    }
    sc.addSparkListener(kills)
    try attempt(0, model, given, None)
    finally sc.removeSparkListener(kills)
  }

  /** Return the stretch of the flat vector of each part of the network that has a method. */
  private def spansOf(names: Set[String]): Map[String, (Int, Int)] = {
    val all = SparkdlBigDL.flatten(model)._1
    if (names == Set(model.getName())) Map(model.getName() -> (0 -> all.nElement()))
    else
      names.map { name =>
        val part = model(name).getOrElse(
          throw new UnsupportedTrainingException(
            s"an optimization method is set for $name, but the model lacks it"
          )
        )
        val own = SparkdlBigDL.flatten(part)._1
        name -> (own.storageOffset() - 1 -> own.nElement())
      }.toMap
  }

  private def finish(results: Seq[RankResult]): (TrainingResult, String) = {
    val weights = SparkdlBigDL.flatten(model)._1.storage().array()
    results.flatMap(_.stretches).foreach { stretch =>
      System.arraycopy(stretch.values, 0, weights, stretch.start, stretch.values.length)
    }
    val result = results.flatMap(_.result).head
    if (result.extras.nonEmpty) model.setExtraParameter(result.extras)
    (result, Account.summary(results.map(_.account), result.iterations.size, result.batching))
  }
}

private[bigdl] object TrainingJob {
  private val Interrupt = "spark.job.interruptOnCancel"

  /** Run one Spark job. The job captures only this request. */
  private def train(request: TrainingRequest, data: GangData): Seq[RankResult] = {
    val sc = data.sparkContext
    val before = sc.getLocalProperty(Interrupt)
    // a rank of a cancelled stage should not wait for its deadline
    sc.setLocalProperty(Interrupt, "true")
    try
      data.barrier().mapPartitions(rows => Iterator.single(runRank(request, rows.next()))).collect().toSeq
    finally sc.setLocalProperty(Interrupt, before)
  }

  private def runRank(request: TrainingRequest, rows: RankData): RankResult = {
    val context = BarrierTaskContext.get()
    SparkdlBigDL.setNodeAndCore(request.ranks, request.cores)
    JvmRank.run(context, request.job)(rank => new RankTraining(request, rank, rows, context).run())
  }
}
