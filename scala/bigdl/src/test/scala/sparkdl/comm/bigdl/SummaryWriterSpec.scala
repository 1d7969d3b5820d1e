package sparkdl.comm.bigdl

import java.nio.file.Files

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.visualization.{TrainSummary, ValidationSummary}

class SummaryWriterSpec extends AnyFunSuite {
  private val Many = 2000

  test("what is written can be read at once, also where there was something before") {
    SparkdlBigDL.setNodeAndCore(1, 1) // a thread of its engine writes
    val folder = Files.createTempDirectory("sparkdl-summary").toString
    val (train, validation) = (TrainSummary(folder, "run"), ValidationSummary(folder, "run"))
    val iterations = (1 to Many).map(number => Iteration(number, 1, number * 0.5f, 0, 0.1f, 100))
    val judgements = (1 to Many).map(number => Judgement(number, Seq("Loss" -> 2f, "Top1Accuracy" -> 0.5f)))
    val writer = new SummaryWriter(Some(train), Some(validation))
    (1 to 2).foreach { times =>
      writer.write(Told(iterations, judgements, Map.empty, Array.empty, "{}"))
      for (name <- Seq("Loss", "Throughput")) assert(train.readScalar(name).length === times * Many)
      for (name <- Seq("Loss", "Top1Accuracy")) assert(validation.readScalar(name).length === times * Many)
    }
    assert(train.readScalar("Loss").map { case (step, loss, _) => step -> loss }.last === (Many.toLong -> Many * 0.5f))
    Seq(train, validation).foreach(_.close())
  }
}
