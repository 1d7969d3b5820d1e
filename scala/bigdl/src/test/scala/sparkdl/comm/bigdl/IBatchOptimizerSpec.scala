// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.nio.file.{Files, Path}

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.rdd.RDD
import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually._
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import com.intel.analytics.bigdl.{Criterion, OtherEngine, SparkdlBigDL, UngatedLayer}
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.feature.dataset.{
  DataSet,
  DistributedDataSet,
  MiniBatch,
  Sample,
  SampleToMiniBatch
}
import com.intel.analytics.bigdl.dllib.nn.{
  Concat,
  Graph,
  Input,
  LSTM,
  Linear,
  MSECriterion,
  ReLU,
  Recurrent,
  Reshape,
  Select,
  Sequential
}
import com.intel.analytics.bigdl.dllib.optim.{
  Adam,
  DistriOptimizer,
  LBFGS,
  Loss,
  OptimMethod,
  Optimizer,
  PrecisionRecallAUC,
  SGD,
  Trigger,
  ValidationMethod
}
import com.intel.analytics.bigdl.dllib.tensor.{Storage, Tensor}
import com.intel.analytics.bigdl.dllib.utils.MklDnn
import com.intel.analytics.bigdl.dllib.visualization.{Summary, TrainSummary, ValidationSummary}
import com.intel.analytics.bigdl.numeric.NumericFloat

import sparkdl.comm.CommException

/**
 * Two ranks in this JVM against BigDL's own optimizer. All rows are one batch, so both see the same
 * rows in each iteration.
 */
class IBatchOptimizerSpec extends AnyFunSuite with BeforeAndAfterAll {
  private val Ranks = 2
  private val Inputs = 6
  private val Rows = 16
  private val Iterations = 14
  private lazy val folder = Files.createTempDirectory("sparkdl-bigdl")
  private var sc: SparkContext = _

  override def beforeAll(): Unit = {
    val conf = new SparkConf()
      .setMaster(s"local[$Ranks]")
      .setAppName("IBatchOptimizerSpec")
      .set("spark.plugins", "sparkdl.comm.CommPlugin")
      .set("spark.ui.enabled", "false")
      .set("spark.sparkdl.comm.timeout", "30s")
      .set("spark.sparkdl.comm.ps.profileIterations", "3")
    sc = new SparkContext(conf)
    SparkdlBigDL.setNodeAndCore(Ranks, 1)
  }

  override def afterAll(): Unit = sc.stop()

  private def linear(inputs: Int, outputs: Int, name: String): Network =
    Linear(inputs, outputs).setName(name).asInstanceOf[Network]

  // Even counts: the middle of an odd ramp has only a rounding error as its gradient, which Adam
  // scales up.
  private def emulated(forwardSeconds: Double): Network = Sequential()
    .add(linear(Inputs, 1, "first"))
    .add(new EmulatedLayer(0, 30, forwardSeconds, 0).asInstanceOf[Network])
    .add(new EmulatedLayer(1, 8, 0, 0).asInstanceOf[Network])

  private val networks: Map[String, () => Network] = Map(
    "a sequence" -> (() =>
      Sequential().add(linear(Inputs, 40, "first")).add(ReLU()).add(linear(40, 20, "second")).add(
        linear(20, 1, "last")
      )
    ),
    "a graph" -> { () =>
      val begin = Input()
      val hidden = linear(Inputs, 12, "first").inputs(begin)
      Graph(begin, linear(12, 1, "last").inputs(ReLU().inputs(hidden)))
    },
    "branches" -> (() =>
      Sequential()
        .add(Concat(2).add(linear(Inputs, 8, "left")).add(Sequential().add(linear(
          Inputs,
          4,
          "right"
        )).add(ReLU())))
        .add(linear(12, 1, "last"))
    ),
    "a recurrent layer" -> (() =>
      Sequential()
        .add(Reshape(Array(3, Inputs / 3)))
        .add(Recurrent().add(LSTM(Inputs / 3, 5)))
        .add(Select(2, -1))
        .add(linear(5, 1, "last"))
    ),
    "layers that begin with the same parameters in common" -> { () =>
      val Seq(first, second) = Seq("first", "second").map(linear(Inputs, Inputs, _))
      first.parameters()._1.zip(second.parameters()._1).foreach { case (tensor, shared) =>
        tensor.set(shared)
      }
      Sequential().add(first).add(ReLU()).add(second).add(linear(Inputs, 1, "last"))
    },
    "layers that only wait" -> (() => emulated(forwardSeconds = 0))
  )

  private def rows(count: Int): RDD[Sample[Float]] = {
    val samples = (0 until count).map { row =>
      val values = Array.tabulate(Inputs)(column => math.sin(row * Inputs + column).toFloat)
      Sample(Tensor(Storage(values)), Tensor(Storage(Array(values.sum * 0.5f))))
    }
    sc.parallelize(samples, Ranks)
  }

  private def batches(count: Int, batch: Int): DistributedDataSet[MiniBatch[Float]] =
    (DataSet.rdd(rows(count)) -> SampleToMiniBatch[Float](batch)).toDistributed()

  private def criterion: Criterion[Float] = MSECriterion[Float]().asInstanceOf[Criterion[Float]]

  private def weights(network: Network): Seq[Float] =
    SparkdlBigDL.flatten(network)._1.storage().array().toSeq

  /** Train the network. Return its weights and the loss of each iteration. */
  private def trained(
      optimizer: Optimizer[Float, MiniBatch[Float]],
      method: OptimMethod[Float]
  ): (Seq[Float], Seq[Float]) = {
    val summary = TrainSummary(folder.toString, s"run${System.nanoTime}")
    val network = optimizer
      .setOptimMethod(method)
      .setEndWhen(Trigger.maxIteration(Iterations))
      .setTrainSummary(summary)
      .optimize()
    (weights(network), written(summary, Iterations).map(_._2))
  }

  /** Return the steps and losses of a summary, once its writer thread has written the last step. */
  private def written(summary: Summary, lastStep: Int): Seq[(Long, Float)] =
    eventually(timeout(10.seconds), interval(20.millis)) {
      val read = summary.readScalar("Loss").toSeq.map { case (step, loss, _) => (step, loss) }
      assert(read.lastOption.map(_._1) === Some(lastStep.toLong))
      read
    }

  private def bigdl(network: Network): DistriOptimizer[Float] =
    new DistriOptimizer[Float](network, batches(Rows, Rows), criterion).setCompressType("none")

  private def ibatch(network: Network, policy: String): IBatchOptimizer =
    new IBatchOptimizer(network, batches(Rows, Rows), criterion).setConf(
      "spark.sparkdl.comm.ps.batching",
      policy
    )

  private def assertClose(ours: Seq[Float], theirs: Seq[Float]): Unit = {
    assert(ours.size === theirs.size)
    ours.zip(theirs).foreach { case (our, their) =>
      assert(math.abs(our - their) <= 1e-5 * math.max(1, math.abs(their)))
    }
  }

  private def compare(
      network: () => Network,
      policy: String,
      method: => OptimMethod[Float]
  ): Unit = {
    val start = network()
    val (theirWeights, theirLosses) = trained(bigdl(start.cloneModule()), method)
    val (ourWeights, ourLosses) = trained(ibatch(start.cloneModule(), policy), method)
    assert(ourLosses.size === Iterations)
    assertClose(ourLosses, theirLosses)
    assertClose(ourWeights, theirWeights)
    assert(theirWeights !== weights(start))
  }

  for (policy <- Seq("whole", "layerwise", "ibatch"))
    test(s"weights and losses equal those of DistriOptimizer: $policy") {
      compare(
        networks("a sequence"),
        policy,
        new SGD(0.05, momentum = 0.9, learningRateDecay = 0.01)
      )
    }

  for ((name, network) <- networks - "a sequence")
    test(s"weights and losses equal those of DistriOptimizer: $name")(compare(
      network,
      "layerwise",
      new Adam(0.01)
    ))

  test("weights and losses equal those of DistriOptimizer with several replicas in each executor") {
    SparkdlBigDL.setNodeAndCore(Ranks, 2)
    try compare(networks("a sequence"), "layerwise", new SGD(0.05))
    finally SparkdlBigDL.setNodeAndCore(Ranks, 1)
  }

  test("gradients are clipped as by DistriOptimizer") {
    val start = networks("a sequence")()
    def clipped(optimizer: Optimizer[Float, MiniBatch[Float]]): Seq[Float] =
      trained(optimizer.setConstantGradientClipping(-0.01, 0.01), new SGD(0.5))._1
    assertClose(
      clipped(ibatch(start.cloneModule(), "layerwise")),
      clipped(bigdl(start.cloneModule()))
    )
  }

  test("the summary has the numbers of the training") {
    val optimizer = ibatch(emulated(forwardSeconds = 0.002), "ibatch")
    val (_, losses) = trained(optimizer, new SGD(0.05))
    assert(optimizer.losses === losses)
    val told = new ObjectMapper().readTree(optimizer.summary)
    assert((told.get("world").asInt, told.get("iterations").asInt) === ((Ranks, Iterations)))
    assert(told.get("phases").get("forward").asDouble >= 0.002)
    assert(told.get("seconds_per_iteration").asDouble >= told.get("phases").get("forward").asDouble)
    val computing =
      Seq("overlapped", "computation_only").map(told.get("overlap").get(_).asDouble).sum
    assert(computing >= told.get("phases").get("forward").asDouble)
    assert(told.get("bytes").get("pull").asLong === 0, "both ranks are in one executor")
    assert(told.get("batching").get("pull").get("asked").asText === "ibatch")
  }

  test("validation uses all rows, and its score can end training") {
    val summary = ValidationSummary(folder.toString, "validated")
    val optimizer = ibatch(networks("a sequence")(), "layerwise")
    val loss = new Loss[Float](criterion)
    optimizer.setValidation(Trigger.severalIteration(2), batches(10, 4), Array(loss))
    optimizer.setValidationSummary(summary)
    val network =
      optimizer.setOptimMethod(new SGD(0.05)).setEndWhen(Trigger.maxScore(0f)).optimize()
    val judged = written(summary, lastStep = 1)
    assert(judged.map(_._1) === Seq(1), "the first loss is a score already")
    val expected = network.evaluate(rows(10), Array(loss), Some(10)).head._1.result._1
    assert(math.abs(judged.head._2 - expected) < 1e-5)
  }

  private val OwnException = new IllegalStateException("this rank had enough")
  private val Loss =
    new CommException(CommException.PeerLost, "the executor of rank 1 is gone or does not answer")

  private def failing(
      optimizer: Network => IBatchOptimizer,
      passes: Int,
      failure: Exception
  ): IBatchOptimizer = {
    FailingLayer.left.set(passes)
    FailingLayer.failure = failure
    optimizer(Sequential().add(linear(Inputs, 4, "first")).add(new FailingLayer()).add(linear(
      4,
      1,
      "last"
    )))
  }

  test("executors keep nothing of a finished training") {
    trained(ibatch(networks("a sequence")(), "layerwise"), new SGD(0.05))
    val ungated: Network = Sequential().add(linear(Inputs, 1, "first")).add(new UngatedLayer())
    val threw = failing(ibatch(_, "layerwise"), 1, OwnException)
    Seq(threw, ibatch(ungated, "layerwise")).foreach { optimizer =>
      intercept[TrainingFailedException](trained(optimizer, new SGD(0.05)))
    }
    eventually(timeout(10.seconds), interval(20.millis))(assert(LayerGate.registered === 0))
  }

  test("after a rank is lost, all ranks restart from the last checkpoint") {
    val optimizer = failing(ibatch(_, "layerwise"), 2 * Ranks * 3, Loss)
    val checkpoints = Files.createDirectory(folder.resolve("checkpoints"))
    optimizer.setCheckpoint(checkpoints.toString, Trigger.severalIteration(2))
    val (_, losses) = trained(optimizer, new SGD(0.05))
    assert(losses.size < Iterations, "iterations before the checkpoint are not repeated")
    val files = Files.walk(checkpoints).toArray.map(_.asInstanceOf[Path].getFileName.toString)
    assert(files.contains(s"model.$Iterations"))
  }

  test("a rank that is lost too often ends training") {
    val optimizer =
      failing(ibatch(_, "layerwise"), 1, Loss).setConf("spark.sparkdl.comm.maxRestarts", "0")
    val failed = intercept[TrainingFailedException](trained(optimizer, new SGD(0.05)))
    assert(failed.getMessage.contains("spark.sparkdl.comm.maxRestarts=0"))
  }

  test("an exception of the user's code ends training at once") {
    val optimizer = failing(ibatch(_, "layerwise"), 1, OwnException)
    val failed = intercept[TrainingFailedException](trained(optimizer, new SGD(0.05)))
    Seq("did not restart", OwnException.getMessage).foreach(part =>
      assert(failed.getMessage.contains(part))
    )
  }

  test("the engine mkldnn, which keeps parameters in its own memory, is refused") {
    val optimizer = ibatch(networks("a sequence")(), "layerwise")
    val refused =
      intercept[UnsupportedTrainingException](OtherEngine.during(MklDnn)(optimizer.optimize()))
    assert(refused.getMessage.contains("bigdl.engineType=mklblas"))
  }

  test("an unsupported request is refused before training") {
    def refused(prepare: IBatchOptimizer => Unit): String = {
      val optimizer = ibatch(networks("a sequence")(), "layerwise")
      optimizer.setEndWhen(Trigger.maxIteration(1))
      prepare(optimizer)
      intercept[UnsupportedTrainingException](optimizer.optimize()).getMessage
    }
    assert(refused(_.setOptimMethod(new LBFGS[Float]())).contains("LBFGS"))
    assert(refused(_.setGradientClippingByl2Norm(1)).contains("setGradientClippingByl2Norm"))
    assert(refused(_.setDropModuleProperty(0.1, 0.2)).contains("setDropModuleProperty"))
    assert(refused(_.setConf("spark.sparkdl.comm.ps.batching", "best")).contains("best"))
    Seq(15, 0, -2).foreach { size =>
      val odd = intercept[UnsupportedTrainingException](
        IBatchOptimizer(networks("a sequence")(), rows(Rows), criterion, size)
      )
      assert(odd.getMessage.startsWith(s"batchSize=$size: must be a multiple of 2, the"))
    }
    def judgedBy(method: ValidationMethod[Float], rows: Int): String =
      refused(_.setValidation(Trigger.severalIteration(2), batches(rows, 4), Array(method)))
    assert(judgedBy(new PrecisionRecallAUC[Float](), 10).startsWith(
      "PrecisionRecallAUC is not a mean over rows"
    ))
    assert(judgedBy(new Loss[Float](criterion), 0) === "the validation data have no rows")
    val none = new IBatchOptimizer(networks("a sequence")(), batches(0, 4), criterion)
    assert(
      intercept[UnsupportedTrainingException](none.optimize()).getMessage === "the training data have no rows"
    )
    val few = new IBatchOptimizer(
      networks("a sequence")(),
      (DataSet.rdd(rows(Rows), 1) -> SampleToMiniBatch[Float](Rows, partitionNum = Some(1)))
        .toDistributed(),
      criterion
    )
    assert(
      intercept[UnsupportedTrainingException](few.optimize()).getMessage.contains("1 partitions")
    )
  }

  test("the driver reports a rank's refusal in the rank's words, and does not retry") {
    SparkdlBigDL.setNodeAndCore(Ranks, 3)
    try {
      val refused = intercept[UnsupportedTrainingException](
        ibatch(networks("a sequence")(), "layerwise").setEndWhen(Trigger.maxIteration(1)).optimize()
      )
      assert(refused.getMessage.startsWith(
        "a batch of 8 rows in each executor cannot be cut into 3 equal parts"
      ))
      assert(!refused.getMessage.contains("\n"))
    } finally SparkdlBigDL.setNodeAndCore(Ranks, 1)
  }
}
