// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Properties;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Entry point of the plugin: {@code spark.plugins=sparkdl.comm.CommPlugin}.
 *
 * <p>It is in Java and does not use the Scala library, so that a jar for another Scala version
 * reports that. Otherwise an executor would fail with a NoSuchMethodError. It is compiled for Java
 * 8, unlike the rest of the jar, so that it can also report an older Java.
 */
public final class CommPlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    check();
    return null;
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    check();
    return new CommExecutorPlugin();
  }

  private static void check() {
    Properties build = buildProperties();
    checkJava(build, System.getProperty("java.version"));
    checkBuild(build, org.apache.spark.package$.MODULE$.SPARK_VERSION(), scalaVersion());
  }

  /**
   * @throws IllegalStateException if the Java that runs is older than the one that the jar was
   *    built for
   */
  static void checkJava(Properties build, String runningJava) {
    int needed = Integer.parseInt(build.getProperty("java.release"));
    if (Integer.parseInt(runningJava.replaceFirst("^1\\.", "").split("[^0-9]")[0]) < needed) {
      throw new IllegalStateException(
          "This sparkdl-comm jar needs Java " + needed + " or newer, but Java " + runningJava
              + " is running. Set JAVA_HOME for the driver, and spark.executorEnv.JAVA_HOME for"
              + " executors.");
    }
  }

  /**
   * @throws IllegalStateException if the jar was built for another Spark or Scala than the one that
   *    runs
   */
  static void checkBuild(Properties build, String runningSpark, String runningScala) {
    String spark = build.getProperty("spark.version");
    String scala = build.getProperty("scala.binary.version");
    if (!runningSpark.startsWith(spark + ".") || !runningScala.startsWith(scala + ".")) {
      throw new IllegalStateException(
          "This sparkdl-comm jar was built for Spark " + spark + " and Scala " + scala
              + ", but Spark " + runningSpark + " with Scala " + runningScala + " is running: put the"
              + " jar that matches into spark.jars (in Python, sparkdl_comm.spark_conf() picks it).");
    }
  }

  private static String scalaVersion() {
    return scala.util.Properties$.MODULE$.versionNumberString();
  }

  private static Properties buildProperties() {
    Properties build = new Properties();
    try (InputStream in = CommPlugin.class.getResourceAsStream("/sparkdl/comm/build.properties")) {
      build.load(in);
    } catch (IOException e) {
      throw new UncheckedIOException("sparkdl/comm/build.properties in the sparkdl-comm jar", e);
    }
    return build;
  }
}
