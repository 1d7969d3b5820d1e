// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import scala.collection.mutable

import org.apache.spark.{SparkConf, TaskContext, TaskKilledException}
import org.apache.spark.internal.Logging

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, ValidationMethod}
import com.intel.analytics.bigdl.dllib.utils.{T, Table}

import sparkdl.comm.gang.JvmRank
import sparkdl.comm.ps.{Gathering, Segment, SegmentMap}

/**
 * Training of one rank: iterations until the trigger ends them, which happens on all ranks alike.
 */
private[bigdl] final class RankTraining(
    request: TrainingRequest,
    rank: JvmRank,
    data: RankData,
    context: TaskContext
) extends Logging {
  private val clock = rank.clock
  private val replicas = new Replicas(IndexedSeq.fill(request.cores)(replica()))

  // These methods only track the progress of training. They never see parameters.
  private val methods = request.methods.map { case (name, method) => name -> method.clone() }
  private val exchange = new ParameterExchange(rank, IBatchSettings(conf), replicas, shard)

  private var progress = request.start
  private var epochRows = request.epochRows
  private val iterations = mutable.ArrayBuffer.empty[IterationRecord]
  private val validations = mutable.ArrayBuffer.empty[ValidationRecord]

  def run(): RankResult =
    try {
      exchange.open()
      train()
    } finally exchange.close()

  private def train(): RankResult = {
    val state =
      T("epoch" -> progress.epoch, "neval" -> progress.iteration, "parallelism" -> request.cores)
    describe(state)
    val begun = clock.nanoTime
    while (!request.endWhen(state)) {
      if (context.isInterrupted()) throw new TaskKilledException
      iterate(state)
      validate(state)
      saveCheckpoint(state)
    }
    exchange.await()
    val account = exchange.account((clock.nanoTime - begun) / 1e9)
    val result =
      if (rank.number != 0) None
      else
        Some(TrainingResult(iterations, validations, methods, replicas.extras, exchange.batching))
    RankResult(exchange.stretches, account, result)
  }

  private def conf: SparkConf = new SparkConf(false).setAll(request.conf)

  private def replica(): Replica = Replica(
    request.network.value(initGradient = true, shareWeight = false),
    request.criterion.cloneCriterion(),
    request.validation.fold(Seq.empty[ValidationMethod[Float]])(_.methods.map(_.clone())),
    new Stopwatch(clock)
  )

  private def shard(map: SegmentMap, memory: Segment): Shard = {
    def method(layer: Int): OptimMethod[Float] =
      request.methods(request.methodFor(replicas.layers.starts(layer)))
    new Shard(map, memory, replicas.weights, method, rank.world * replicas.size, request.clipping)
  }

  private def iterate(state: Table): Unit = {
    val begun = clock.nanoTime
    val batch = data.next()
    exchange.begin(progress)
    val losses = train(batch)
    exchange.end()
    val sums = Losses.addUp(losses)
    val seconds = (clock.nanoTime - begun) / 1e9

    methods.values.foreach { method =>
      progress.writeTo(method)
      method.updateHyperParameter()
    }
    epochRows += sums.rows
    val number = progress.iteration
    progress = progress.copy(iteration = number + 1, loss = sums.mean)
    if (epochRows >= request.rows) {
      progress = progress.copy(epoch = progress.epoch + 1)
      epochRows = 0
      data.shuffle()
    }
    updateMethods()
    describe(state)
    state("LearningRate") = methods.head._2.getLearningRate().toFloat
    state("Throughput") = (sums.rows / seconds).toFloat
    if (rank.number == 0) {
      val rate = state[Float]("LearningRate")
      iterations += IterationRecord(
        number,
        progress.epoch,
        sums.mean,
        progress.score,
        rate,
        state[Float]("Throughput")
      )
      logDebug(s"Iteration $number: ${sums.rows} rows in $seconds s, loss ${sums.mean}")
    }
  }

  /** Run forward and backward. Meanwhile the losses of all ranks are gathered. */
  private def train(batch: MiniBatch[Float]): Gathering.Round = {
    var sum = 0.0
    var known = 0
    var round = Option.empty[Gathering.Round]
    replicas.train(batch) { (replica, loss) =>
      synchronized {
        sum += loss
        known += 1
        if (known == replicas.size)
          round = Some(rank.session.gathering.begin(Losses(sum, known, batch.size()).encode))
      }
      exchange.onForwardEnded(replica)
    }
    round.get
  }

  private def validate(state: Table): Unit =
    request.validation.filter(_.trigger(state)).foreach { validation =>
      exchange.await()
      val own = ValidationSums(replicas.evaluate(data.validation()), validation.methods.size)
      val means = ValidationSums.addUp(rank.session.gathering.begin(own.encode)).means
      progress = progress.copy(score = means.head)
      updateMethods()
      describe(state)
      val values = validation.methods.map(_.toString()).zip(means)
      validations += ValidationRecord(progress.iteration - 1, values)
      if (rank.number == 0)
        logInfo(s"Iteration ${progress.iteration - 1}: ${values.mkString(", ")}")
    }

  private def saveCheckpoint(state: Table): Unit =
    request.checkpoint.filter(_.trigger(state)).foreach { checkpoint =>
      if (rank.number == 0) {
        exchange.await()
        val network = request.network.value(initGradient = true, shareWeight = false)
        val weights = SparkdlBigDL.flatten(network)._1.storage().array()
        System.arraycopy(replicas.weights, 0, weights, 0, weights.length)
        if (replicas.extras.nonEmpty) network.setExtraParameter(replicas.extras)
        new Checkpoints(checkpoint.path).save(network, methods, progress.iteration)
      }
    }

  private def updateMethods(): Unit = methods.values.foreach { method =>
    progress.writeTo(method)
    SparkdlBigDL.state(method)("recordsProcessedThisEpoch") = epochRows.toInt
  }

  private def describe(state: Table): Unit = {
    state("epoch") = progress.epoch
    state("neval") = progress.iteration
    state("Loss") = progress.loss
    state("score") = progress.score
  }
}
